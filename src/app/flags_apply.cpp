// From the text of a flag to the member of TrainOptions: strict readings, limits, choices, refusals.
#include <fmt/format.h>

#include <algorithm>

#include "app/flags.hpp"
#include "app/flags_text.hpp"

namespace ranktune::app {
namespace {

using Problem = std::optional<std::string>;

// "a, b or c"
std::string listed(std::span<const std::string_view> words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

std::string allowed_numbers(const Limits& limits, std::string_view kind) {
  const auto plain = [](double value) {
    return value == static_cast<double>(static_cast<std::int64_t>(value))
               ? fmt::format("{}", static_cast<std::int64_t>(value))
               : fmt::format("{}", value);
  };
  if (!limits.minimum_excluded && !limits.maximum_excluded) {
    return fmt::format("{} from {} to {}", kind, plain(limits.minimum), plain(limits.maximum));
  }
  return fmt::format("{} {} {} and {} {}", kind, limits.minimum_excluded ? ">" : ">=", plain(limits.minimum),
                     limits.maximum_excluded ? "<" : "<=", plain(limits.maximum));
}

template <typename Number>
bool within(const Limits& limits, Number number) {
  const auto value = static_cast<double>(number);
  const bool above = limits.minimum_excluded ? value > limits.minimum : value >= limits.minimum;
  const bool below = limits.maximum_excluded ? value < limits.maximum : value <= limits.maximum;
  return above && below;
}

bool is_choice(const Flag& flag, std::string_view word) {
  return std::find(flag.choices.begin(), flag.choices.end(), word) != flag.choices.end();
}

// One value for one flag, stored through the overload for the member's type.
class Setter {
 public:
  Setter(const Flag& flag, const Occurrence& occurrence, TrainOptions& options)
      : flag_(flag), occurrence_(occurrence), options_(options) {}

  Problem operator()(bool TrainOptions::*member) {
    const auto value = occurrence_.values.empty() ? std::optional<bool>(true) : parse_switch(text());
    if (!value) return must_be("true or false");
    if (*value && !flag_.refusal.empty()) return refused("");
    options_.*member = *value;
    return std::nullopt;
  }

  Problem operator()(std::int64_t TrainOptions::*member) { return set_number(member, parse_integer(text())); }
  Problem operator()(double TrainOptions::*member) { return set_number(member, parse_number(text())); }

  Problem operator()(std::optional<std::int64_t> TrainOptions::*member) {
    return set_optional(member, flag_.is_duration ? parse_duration(text()) : parse_integer(text()));
  }
  Problem operator()(std::optional<double> TrainOptions::*member) {
    return set_optional(member, parse_number(text()));
  }

  Problem operator()(std::string TrainOptions::*member) {
    if (flag_.choices.empty()) {
      if (text().empty()) return needs_value();
      if (looks_like_flag()) return must_be(kNoFlag);
      options_.*member = text();
      return std::nullopt;
    }
    const std::string word = lower(text());
    if (!is_choice(flag_, word)) return flag_.refusal.empty() ? must_be(allowed()) : refused(text());
    options_.*member = word;
    return std::nullopt;
  }

  Problem operator()(std::optional<std::string> TrainOptions::*member) {
    if (means_none(text())) {
      options_.*member = std::nullopt;
      return std::nullopt;
    }
    if (!flag_.refusal.empty()) return refused("");
    if (looks_like_flag()) return must_be(kNoFlag);
    options_.*member = text();
    return std::nullopt;
  }

  Problem operator()(std::vector<std::string> TrainOptions::*member) {
    const std::vector<std::string> given = words();
    const bool none = given.empty() || (given.size() == 1 && means_none(given.front()));
    if (none && !flag_.refusal.empty()) {
      (options_.*member).clear();
      return std::nullopt;
    }
    if (given.empty()) return needs_value();
    for (const std::string& word : given) {
      if (is_choice(flag_, word) || (given.size() == 1 && word == kAllLinear && takes_all())) continue;
      if (!flag_.refusal.empty()) return refused(word);
      return must_be(allowed(), word);
    }
    // In the order of the choices, each once.
    std::vector<std::string> chosen;
    for (const std::string_view choice : flag_.choices) {
      const bool wanted = std::find(given.begin(), given.end(), choice) != given.end();
      if (wanted || given.front() == kAllLinear) chosen.emplace_back(choice);
    }
    options_.*member = std::move(chosen);
    return std::nullopt;
  }

  std::string needs_value() const {
    const std::string values = allowed();
    return fmt::format("{} needs a value{}{}", occurrence_.spelling, values.empty() ? ", as in " : ": ",
                       values.empty() ? fmt::format("--{} {}", flag_.name, flag_.value_name) : values);
  }

 private:
  static constexpr std::string_view kAllLinear = "all-linear";
  static constexpr const char* kNoFlag = "a name or a path that does not start with a dash";

  // Whether one word stands for all choices of a list.
  bool takes_all() const { return flag_.default_text == kAllLinear; }

  // A forgotten value: what follows is the next flag, mistyped.
  bool looks_like_flag() const { return text().starts_with("-"); }

  std::string text() const { return occurrence_.values.empty() ? std::string() : occurrence_.values.front(); }

  // All values, split at commas and blanks.
  std::vector<std::string> words() const {
    std::vector<std::string> result;
    for (const std::string& value : occurrence_.values) {
      std::size_t start = 0;
      while ((start = value.find_first_not_of(", \t", start)) != std::string::npos) {
        const std::size_t end = std::min(value.find_first_of(", \t", start), value.size());
        result.push_back(value.substr(start, end - start));
        start = end;
      }
    }
    return result;
  }

  template <typename Number>
  Problem set_number(Number TrainOptions::*member, std::optional<Number> value) {
    if (!flag_.refusal.empty()) return refused("");
    if (!value || !within(flag_.limits, *value)) return must_be(allowed());
    options_.*member = *value;
    return std::nullopt;
  }

  template <typename Number>
  Problem set_optional(std::optional<Number> TrainOptions::*member, std::optional<Number> value) {
    const std::string word = lower(text());
    if (word == "none" || word == flag_.nothing) {
      options_.*member = std::nullopt;
      return std::nullopt;
    }
    if (!value || !within(flag_.limits, *value)) return must_be(allowed());
    options_.*member = value;
    return std::nullopt;
  }

  // What the flag takes, in words; empty where any text will do.
  std::string allowed() const {
    if (!flag_.choices.empty()) {
      const bool several = std::holds_alternative<std::vector<std::string> TrainOptions::*>(flag_.member);
      return several ? fmt::format("{}any of {}", takes_all() ? "all-linear or " : "",
                                   fmt::join(flag_.choices, ", "))
                     : listed(flag_.choices);
    }
    if (flag_.is_duration) return "seconds or [D-]HH:MM:SS";
    struct Words {
      const Flag& flag;
      std::string operator()(std::int64_t TrainOptions::*) const { return integers(); }
      std::string operator()(double TrainOptions::*) const { return numbers(); }
      std::string operator()(std::optional<std::int64_t> TrainOptions::*) const {
        return fmt::format("{} or {}", flag.nothing, integers());
      }
      std::string operator()(std::optional<double> TrainOptions::*) const {
        return fmt::format("{} or {}", flag.nothing, numbers());
      }
      std::string operator()(bool TrainOptions::*) const { return "true or false"; }
      std::string operator()(std::string TrainOptions::*) const { return {}; }
      std::string operator()(std::optional<std::string> TrainOptions::*) const { return {}; }
      std::string operator()(std::vector<std::string> TrainOptions::*) const { return {}; }
      std::string integers() const { return allowed_numbers(flag.limits, "a whole number"); }
      std::string numbers() const { return allowed_numbers(flag.limits, "a number"); }
    };
    return std::visit(Words{flag_}, flag_.member);
  }

  std::string must_be(const std::string& what) const { return must_be(what, text()); }
  std::string must_be(const std::string& what, std::string_view given) const {
    return fmt::format("{} must be {}, not '{}'", occurrence_.spelling, what, given);
  }

  // The value is told only where it is one of a few words: it may be a secret.
  std::string refused(std::string_view value) const {
    return fmt::format("{}{}{} is not available in this version: {}", occurrence_.spelling,
                       value.empty() ? "" : " ", value, flag_.refusal);
  }

  const Flag& flag_;
  const Occurrence& occurrence_;
  TrainOptions& options_;
};

}  // namespace

std::optional<std::string> apply(const Flag& flag, const Occurrence& occurrence, TrainOptions& options) {
  Setter setter(flag, occurrence, options);
  const bool is_switch = std::holds_alternative<bool TrainOptions::*>(flag.member);
  if (occurrence.values.empty() && !is_switch) return setter.needs_value();
  return std::visit(setter, flag.member);
}

}  // namespace ranktune::app
