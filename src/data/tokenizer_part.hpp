// A part of tokenizer.json together with the place it stands at, so that whatever is wrong with it can be
// named.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune::data::tokenizing {

class JsonPart {
 public:
  // `file` is how messages call the file; `value` must outlive the part.
  JsonPart(const nlohmann::json& value, std::string file, std::string where);

  // True for a key that is there and not null.
  bool has(std::string_view key) const;
  // The value of a key. Throws UserError where it is missing, of another type, or nested absurdly deep.
  JsonPart child(std::string_view key) const;
  std::vector<JsonPart> children(std::string_view key) const;
  std::string text(std::string_view key) const;
  bool flag(std::string_view key) const;
  bool flag(std::string_view key, bool fallback) const;
  std::size_t count(std::string_view key) const;
  // A string of exactly one character.
  std::string character(std::string_view key) const;
  // The "type" of a normalizer, pre-tokenizer and so on.
  std::string type() const { return text("type"); }

  const nlohmann::json& value() const { return value_; }
  // Throws UserError "FILE: WHERE MESSAGE".
  [[noreturn]] void refuse(const std::string& message) const;

 private:
  const nlohmann::json& at(std::string_view key) const;

  const nlohmann::json& value_;
  std::string file_;
  std::string where_;
  int depth_ = 0;
};

}  // namespace ranktune::data::tokenizing
