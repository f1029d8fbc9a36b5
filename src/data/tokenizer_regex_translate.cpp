// The translation from Oniguruma's syntax to PCRE2's; see tokenizer_regex.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "data/tokenizer_regex.hpp"
#include "data/unicode.hpp"
#include "data/unicode_tables.hpp"

namespace ranktune::data::tokenizing {
namespace {

constexpr std::size_t kNone = std::string::npos;
constexpr std::size_t kMaxPattern = 1 << 16;
constexpr std::size_t kMaxGroups = 200;
// White_Space by its ranges: PCRE2's own \s holds U+180E as well.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kHexDigit = "0-9A-Fa-f";
// What Oniguruma's \w holds besides, below U+0100, unless it stands in a class.
constexpr std::string_view kLatinWordDigits = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

std::string code_point(char32_t c) {
  return fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(c));
}

// A set of characters as the inside of [...], or as its complement.
struct Set {
  std::string inside;
  bool complement = false;

  std::string as_class() const { return (complement ? "[^" : "[") + inside + "]"; }
};

const PropertyAdditions* find_additions(std::string_view name) {
  for (const PropertyAdditions& additions : property_additions()) {
    if (additions.name == name) return &additions;
  }
  return nullptr;
}

// \p{name} with what newer Unicode versions added.
std::string with_additions(std::string_view name) {
  const PropertyAdditions& additions = *find_additions(name);
  const bool is_script = name.size() > 2;
  std::string inside = fmt::format("\\p{{{}{}}}", is_script ? "sc:" : "", name);
  for (const auto& [first, last] : additions.ranges) inside += code_point(first) + "-" + code_point(last);
  return inside;
}

std::string word_characters(bool in_class) {
  std::string inside = "\\p{Alphabetic}";
  for (const auto* name : {"L", "M", "Nd", "Pc"}) inside += with_additions(name);
  if (!in_class) inside += kLatinWordDigits;
  return inside;
}

// Oniguruma ignores case, spaces, hyphens and underscores in property names.
std::string plain_property_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != ' ' && c != '-' && c != '_') {
      plain.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
      {"letter", "l"},           {"mark", "m"},
      {"number", "n"},           {"punctuation", "p"},
      {"symbol", "s"},           {"separator", "z"},
      {"uppercaseletter", "lu"}, {"lowercaseletter", "ll"},
      {"titlecaseletter", "lt"}, {"modifierletter", "lm"},
      {"otherletter", "lo"},     {"decimalnumber", "nd"},
      {"letternumber", "nl"},    {"othernumber", "no"}};
  for (const auto& [from, to] : kLongNames) {
    if (plain == from) return std::string(to);
  }
  return plain;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {
    if (in_.size() > kMaxPattern) refuse(fmt::format("it is longer than {} bytes", kMaxPattern));
  }

  std::string run() {
    while (!at_end()) step();
    if (!groups_.empty()) refuse("a group is not closed");
    return std::move(out_);
  }

 private:
  struct Group {
    std::size_t begin;     // in out_
    bool caseless_before;  // what holds again behind the group
    bool lookaround;       // cannot be repeated
  };

  [[noreturn]] static void refuse(const std::string& why) { throw UserError(why); }

  bool at_end() const { return at_ >= in_.size(); }
  bool ahead(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  char take() {
    if (at_end()) refuse("it ends early");
    return in_[at_++];
  }

  void atom(const std::string& text) {
    atom_ = out_.size();
    out_ += text;
    alternative_begins_ = false;
  }
  void no_atom(std::string_view text) {
    atom_ = kNone;
    out_ += text;
  }

  void step() {
    const char before = previous_letter_;
    previous_letter_ = 0;
    switch (const char c = in_[at_]) {
      case '\\':
        ++at_;
        return escape();
      case '[':
        ++at_;
        return atom(character_class());
      case '(':
        ++at_;
        return open_group();
      case ')':
        ++at_;
        return close_group();
      case '|':
        ++at_;
        no_atom("|");
        alternative_begins_ = false;
        group_begins_ = false;
        return;
      case '*':
      case '+':
      case '?':
        ++at_;
        return repeat(std::string(1, c));
      case '{':
        return interval();
      case '.':
        ++at_;
        return atom(".");
      case '^':
      case '$':
        ++at_;
        no_atom(std::string_view(&c, 1));
        alternative_begins_ = false;
        return;
      default:
        return literal(before);
    }
  }

  void literal(char before) {
    const char32_t c = next_code_point(in_, at_);
    check_case(c);
    if (c < 0x80 && std::isalpha(static_cast<int>(c)) != 0) {
      previous_letter_ = static_cast<char>(std::tolower(static_cast<int>(c)));
    }
    if (caseless_) {
      const std::string_view pairs[] = {"ss", "st", "ff", "fi", "fl"};
      const char pair[] = {before, previous_letter_};
      if (std::ranges::find(pairs, std::string_view(pair, 2)) != std::end(pairs)) {
        refuse("letters that fold to one character (ss, st, ff, fi, fl) under (?i)");
      }
    }
    atom(code_point(c));
  }

  // Case folding of other characters differs between the two libraries.
  void check_case(char32_t c) const {
    if (caseless_ && c >= 0x80) refuse("a character outside ASCII under (?i)");
  }

  void escape() {
    if (at_end()) refuse("it ends with a backslash");
    if (ahead("A") || ahead("z") || ahead("Z")) {
      no_atom(std::string("\\") + take());
      alternative_begins_ = false;
      return;
    }
    if (ahead("b") || ahead("B")) {
      const bool negated = take() == 'B';
      const std::string word = "[" + word_characters(false) + "]";
      no_atom(negated ? fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word)
                      : fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
      alternative_begins_ = false;
      return;
    }
    if (const auto set = set_escape(false)) return atom(set->as_class());
    const char32_t c = character_escape();
    check_case(c);
    atom(code_point(c));
  }

  // Reads an escape that stands for a set; nullopt (and nothing read) where it stands for one character.
  std::optional<Set> set_escape(bool in_class) {
    switch (in_[at_]) {
      case 's':
        ++at_;
        return Set{std::string(kSpace)};
      case 'S':
        ++at_;
        return Set{std::string(kSpace), true};
      case 'd':
        ++at_;
        return Set{with_additions("Nd")};
      case 'D':
        ++at_;
        return Set{with_additions("Nd"), true};
      case 'w':
        ++at_;
        return Set{word_characters(in_class)};
      case 'W':
        ++at_;
        return Set{word_characters(in_class), true};
      case 'h':
        ++at_;
        return Set{std::string(kHexDigit)};
      case 'H':
        ++at_;
        return Set{std::string(kHexDigit), true};
      case 'p':
      case 'P':
        return property();
      default:
        return std::nullopt;
    }
  }

  Set property() {
    bool complement = take() == 'P';
    if (!ahead("{")) refuse("\\p without braces");
    ++at_;
    const std::size_t close = in_.find('}', at_);
    if (close == kNone) refuse("\\p{ without its closing brace");
    std::string_view written = in_.substr(at_, close - at_);
    at_ = close + 1;
    if (written.starts_with('^')) {
      complement = !complement;
      written.remove_prefix(1);
    }
    const std::string name = plain_property_name(written);
    if (caseless_ && (name == "lu" || name == "ll" || name == "lt"))
      refuse("a letter case property under (?i)");
    Set set = property_set(name, written);
    set.complement = set.complement != complement;
    return set;
  }

  static Set property_set(const std::string& name, std::string_view written) {
    if (name == "space" || name == "whitespace") return {std::string(kSpace)};
    if (name == "c" || name == "cn") {  // what is not assigned shrinks: everything but the other categories
      std::string others;
      for (const auto* category : {"L", "M", "N", "P", "S", "Z"}) others += with_additions(category);
      if (name == "cn") {
        for (const auto* category : {"Cc", "Cf", "Co"}) others += with_additions(category);
      }
      return {others, true};
    }
    for (const PropertyAdditions& additions : property_additions()) {
      if (plain_property_name(additions.name) == name) return {with_additions(additions.name)};
    }
    refuse(fmt::format("the property \\p{{{}}}", written));
  }

  // Reads an escape that stands for one character.
  char32_t character_escape() {
    switch (in_[at_]) {
      case 't':
        ++at_;
        return U'\t';
      case 'n':
        ++at_;
        return U'\n';
      case 'r':
        ++at_;
        return U'\r';
      case 'f':
        ++at_;
        return U'\f';
      case 'v':
        ++at_;
        return U'\v';
      case 'a':
        ++at_;
        return U'\a';
      case 'e':
        ++at_;
        return 0x1B;
      case 'x':
        ++at_;
        return hexadecimal_escape();
      case 'u':
        ++at_;
        return hexadecimal(4, 4);
      default:
        break;
    }
    if (std::isalnum(static_cast<unsigned char>(in_[at_])) != 0) {
      refuse(fmt::format("the escape \\{}", in_[at_]));
    }
    return next_code_point(in_, at_);
  }

  char32_t hexadecimal_escape() {
    if (ahead("{")) {
      ++at_;
      const char32_t c = hexadecimal(1, 6);
      if (take() != '}') refuse("\\x{ without its closing brace");
      return c;
    }
    const char32_t c = hexadecimal(1, 2);
    if (c >= 0x80) refuse("a raw byte above \\x7F");
    return c;
  }

  char32_t hexadecimal(int at_least, int at_most) {
    char32_t value = 0;
    int digits = 0;
    while (digits < at_most && !at_end() && std::isxdigit(static_cast<unsigned char>(in_[at_])) != 0) {
      const char digit = static_cast<char>(std::tolower(static_cast<unsigned char>(in_[at_++])));
      value = value * 16 + static_cast<char32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
      ++digits;
    }
    if (digits < at_least || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      refuse("a hexadecimal escape that is no character");
    }
    return value;
  }

  // Behind '['. Complements inside a class (a \S, say) become alternatives beside it.
  std::string character_class() {
    const bool negated = ahead("^");
    if (negated) ++at_;
    if (ahead("]")) refuse("a character class that begins with ]");
    std::string inside;
    std::vector<std::string> complements;
    while (!ahead("]")) class_item(inside, complements);
    ++at_;
    if (complements.empty()) return Set{inside, negated}.as_class();
    std::string text = "(?:";
    for (const std::string& complement : complements) {
      text += negated ? "(?![^" + complement + "])" : "[^" + complement + "]|";
    }
    if (!inside.empty()) return text + Set{inside, negated}.as_class() + ")";
    if (!negated) text.pop_back();
    return text + (negated ? "[\\x{0}-\\x{10FFFF}])" : ")");
  }

  void class_item(std::string& inside, std::vector<std::string>& complements) {
    if (at_end()) refuse("a character class is not closed");
    if (ahead("[")) refuse("a class inside a class");
    if (ahead("&&")) refuse("an intersection of classes (&&)");
    char32_t first = 0;
    if (ahead("\\")) {
      ++at_;
      if (at_end()) refuse("it ends with a backslash");
      if (const auto set = set_escape(true)) {
        if (set->complement) {
          complements.push_back(set->inside);
        } else {
          inside += set->inside;
        }
        return;
      }
      first = character_escape();
    } else {
      first = next_code_point(in_, at_);
    }
    check_case(first);
    inside += code_point(first);
    if (!ahead("-") || at_ + 1 >= in_.size() || in_[at_ + 1] == ']') return;
    ++at_;
    const char32_t last = range_end();
    if (last < first) refuse("a range that runs backwards");
    inside += "-" + code_point(last);
  }

  char32_t range_end() {
    if (ahead("[")) refuse("a class inside a class");
    char32_t last = 0;
    if (ahead("\\")) {
      ++at_;
      if (at_end()) refuse("it ends with a backslash");
      if (set_escape(true)) refuse("a range that ends in a set");
      last = character_escape();
    } else {
      last = next_code_point(in_, at_);
    }
    check_case(last);
    return last;
  }

  void open_group() {
    if (groups_.size() >= kMaxGroups) refuse("its groups are nested too deep");
    struct Opening {
      std::string_view written, meant;
      bool lookaround;
    };
    // Captures are of no use here, so a plain group captures nothing.
    constexpr Opening kOpenings[] = {{"?:", "(?:", false},  {"?=", "(?=", true},   {"?!", "(?!", true},
                                     {"?<=", "(?<=", true}, {"?<!", "(?<!", true}, {"?>", "(?>", false}};
    for (const Opening& opening : kOpenings) {
      if (!ahead(opening.written)) continue;
      at_ += opening.written.size();
      return begin_group(opening.meant, opening.lookaround, caseless_);
    }
    if (ahead("?i:")) {
      at_ += 3;
      return begin_group("(?i:", false, true);
    }
    if (ahead("?i)")) return caseless_from_here();
    if (ahead("?")) refuse(fmt::format("the group ({}", in_.substr(at_, 3)));
    begin_group("(?:", false, caseless_);
  }

  void begin_group(std::string_view text, bool lookaround, bool caseless) {
    groups_.push_back({out_.size(), caseless_, lookaround});
    no_atom(text);
    caseless_ = caseless;
    group_begins_ = alternative_begins_ = true;
  }

  // (?i) in the middle reaches over the alternatives behind it in Oniguruma, not in PCRE2: only at a
  // beginning.
  void caseless_from_here() {
    if (!group_begins_ || !alternative_begins_) refuse("(?i) behind the beginning of a group");
    at_ += 3;
    no_atom("(?i)");
    caseless_ = true;
  }

  void close_group() {
    if (groups_.empty()) refuse("a closing parenthesis without its group");
    const Group group = groups_.back();
    groups_.pop_back();
    out_ += ')';
    atom_ = group.lookaround ? kNone : group.begin;
    caseless_ = group.caseless_before;
    alternative_begins_ = false;
    group_begins_ = false;
  }

  void repeat(const std::string& quantifier) {
    if (atom_ == kNone) refuse(fmt::format("\"{}\" repeats nothing, or what cannot be repeated", quantifier));
    out_ += quantifier;
    if (ahead("?") || ahead("+")) out_ += take();
    atom_ = kNone;
  }

  // {n}, {n,}, {,m}, {n,m}; anything else is a literal brace.
  void interval() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end])) != 0) ++end;
      return std::string(in_.substr(begin, end - begin));
    };
    std::string low = digits();
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) ++end;
    const std::string high = comma ? digits() : low;
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      ++at_;
      return atom("\\{");
    }
    if (low.size() > 5 || high.size() > 5) refuse("a repetition count above 99999");
    at_ = end + 1;
    if (low.empty()) low = "0";
    if (!high.empty() && std::stoi(high) < std::stoi(low)) refuse("a repetition whose bounds run backwards");
    if (ahead("?") && !comma) refuse("{n}?");
    const bool repeated_again = ahead("+");  // in Oniguruma {n,m}+ is not possessive
    if (repeated_again) ++at_;
    if (repeated_again && (ahead("?") || ahead("+"))) refuse("a quantifier behind {n,m}+");
    const std::size_t begin = atom_;
    repeat(comma ? fmt::format("{{{},{}}}", low, high) : fmt::format("{{{}}}", low));
    if (repeated_again) {
      out_.insert(begin, "(?:");
      out_ += ")+";
    }
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = kNone;  // where in out_ that begins which a quantifier would repeat
  std::vector<Group> groups_;
  bool caseless_ = false;
  bool group_begins_ = true;        // no | seen in this group yet
  bool alternative_begins_ = true;  // nothing seen in this alternative yet
  char previous_letter_ = 0;        // the ASCII letter just read, in lower case
};

}  // namespace

std::string pcre_from_oniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace ranktune::data::tokenizing
