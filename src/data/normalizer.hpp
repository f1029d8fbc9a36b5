// The "normalizer" of tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer_part.hpp"
#include "data/tokenizer_regex.hpp"
#include "data/unicode.hpp"

namespace ranktune::data::tokenizing {

class Normalizer {
 public:
  Normalizer() = default;
  // Throws UserError for a type that is not supported.
  explicit Normalizer(const JsonPart& part) { add(part); }

  bool empty() const { return steps_.empty(); }

  // Normalises `text` in place. `at_origin` says whether it begins where the whole text begins; it is cleared
  // when its first character goes (Metaspace's "first" asks for it).
  void apply(std::string& text, bool& at_origin, RegexScratch& scratch) const;

 private:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    bool left, right;
  };
  struct Lowercase {};
  struct ByteLevel {};
  using Step = std::variant<NormalForm, Prepend, Replace, Strip, Lowercase, ByteLevel>;

  void add(const JsonPart& part);

  std::vector<Step> steps_;  // nested Sequences laid flat
};

// GPT-2's printable stand-in for each byte, as UTF-8: `text` byte by byte appended to `out`.
void append_byte_level(std::string& out, std::string_view text);
// The byte that a character stands for, or nullopt.
std::optional<unsigned char> byte_of_byte_level(char32_t code_point);
// The stand-in of one byte.
char32_t byte_level_character(unsigned char byte);

}  // namespace ranktune::data::tokenizing
