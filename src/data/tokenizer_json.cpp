#include "data/tokenizer_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.hpp"

namespace ranktune::data::tokenizing {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 64;

// Receives the parser's events (nlohmann's SAX interface).
class Reader {
 public:
  Reader(TokenizerJson& out, const std::string& file) : out_(out), file_(file) {}

  using string_t = json::string_t;

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(json::number_integer_t value) {
    if (mode_ == Mode::vocabulary) refuse_id(fmt::format("{}", value));
    return scalar(value);
  }
  bool number_unsigned(json::number_unsigned_t value) {
    if (mode_ != Mode::vocabulary) return scalar(value);
    if (value > static_cast<json::number_unsigned_t>(kLargestId)) refuse_id(fmt::format("{}", value));
    out_.vocabulary.set(key_, static_cast<std::int32_t>(value));
    return true;
  }
  bool number_float(json::number_float_t value, const string_t& text) {
    if (mode_ == Mode::vocabulary) refuse_id(text);
    return scalar(value);
  }
  bool string(string_t& value) {
    if (mode_ == Mode::merges) {
      merge_text(value);
      return true;
    }
    if (mode_ == Mode::pair) {
      if (pair_count_ < 2) pair_[pair_count_] = value;
      ++pair_count_;
      return true;
    }
    return scalar(std::move(value));
  }
  bool binary(json::binary_t&) { return true; }

  bool start_object(std::size_t) {
    if (in_model() && key_ == "vocab") {
      if (out_.has_vocabulary) refuse("model.vocab appears twice");
      out_.has_vocabulary = true;
      mode_ = Mode::vocabulary;
      return true;
    }
    return open(json::object());
  }
  bool key(string_t& value) {
    key_ = value;
    return true;
  }
  bool end_object() {
    if (mode_ == Mode::vocabulary) {
      mode_ = Mode::value;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (mode_ == Mode::merges) {
      mode_ = Mode::pair;
      pair_count_ = 0;
      return true;
    }
    if (in_model() && key_ == "merges") {
      if (out_.has_merges) refuse("model.merges appears twice");
      out_.has_merges = true;
      mode_ = Mode::merges;
      return true;
    }
    return open(json::array());
  }
  bool end_array() {
    if (mode_ == Mode::pair) {
      if (pair_count_ != 2) refuse_merge(fmt::format("an array of {} strings", pair_count_));
      out_.merges.add(pair_[0], pair_[1]);
      mode_ = Mode::merges;
    } else if (mode_ == Mode::merges) {
      mode_ = Mode::value;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    refuse(fmt::format("is not valid JSON at byte {}", position));
  }

 private:
  enum class Mode { value, vocabulary, merges, pair };

  [[noreturn]] void refuse(const std::string& message) const {
    throw UserError(fmt::format("{}: {}", file_, message));
  }
  [[noreturn]] void refuse_id(const std::string& id) const {
    refuse(
        fmt::format("model.vocab gives the token \"{}\" the id {}, which is not a whole number from 0 to {}",
                    key_, id, kLargestId));
  }
  [[noreturn]] void refuse_merge(const std::string& found) const {
    refuse(fmt::format("model.merges[{}] is {}, where two tokens should be", out_.merges.size(), found));
  }

  bool in_model() const { return mode_ == Mode::value && open_.size() == 2 && model_is_open_; }

  // "left right"; a "#version" line counts for nothing.
  void merge_text(const string_t& text) {
    if (text.starts_with("#version")) return;
    const std::size_t space = text.find(' ');
    if (space == string_t::npos || text.find(' ', space + 1) != string_t::npos) {
      refuse_merge(fmt::format("\"{}\"", text));
    }
    out_.merges.add(std::string_view(text).substr(0, space), std::string_view(text).substr(space + 1));
  }

  template <typename Value>
  bool scalar(Value&& value) {
    if (mode_ == Mode::vocabulary) refuse_id("that is no number");
    if (mode_ == Mode::merges || mode_ == Mode::pair) refuse_merge("no string");
    place(std::forward<Value>(value));
    return true;
  }

  json* place(json value) {
    if (open_.empty()) {
      out_.rest = std::move(value);
      return &out_.rest;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    json& placed = parent[key_];
    placed = std::move(value);
    return &placed;
  }

  bool open(json value) {
    if (mode_ == Mode::vocabulary) refuse_id("that is no number");
    if (mode_ == Mode::merges || mode_ == Mode::pair) refuse_merge("something else");
    if (open_.size() >= kMaxDepth) refuse("is nested too deep");
    if (open_.size() == 1)
      model_is_open_ = value.is_object() && key_ == "model" && open_.front()->is_object();
    open_.push_back(place(std::move(value)));
    return true;
  }

  TokenizerJson& out_;
  const std::string& file_;
  Mode mode_ = Mode::value;
  std::vector<json*> open_;
  std::string key_;
  bool model_is_open_ = false;
  std::string pair_[2];
  std::size_t pair_count_ = 0;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file) {
  TokenizerJson out;
  Reader reader(out, file);
  json::sax_parse(text.begin(), text.end(), &reader);
  try {
    out.vocabulary.finish();
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: in model.vocab {}", file, error.what()));
  }
  return out;
}

}  // namespace ranktune::data::tokenizing
