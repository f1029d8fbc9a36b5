// The "decoder" of tokenizer.json: from tokens back to text.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "data/tokenizer_part.hpp"
#include "data/tokenizer_regex.hpp"

namespace ranktune::data::tokenizing {

class Decoder {
 public:
  Decoder() = default;
  // Throws UserError for a type that is not supported.
  explicit Decoder(const JsonPart& part) : present_(true) { add(part); }

  // Text of the tokens; without a decoder they are joined by spaces, as the reference does.
  std::string decode(std::vector<std::string> tokens, RegexScratch& scratch) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Strip {
    std::string content;  // one character
    std::size_t start, stop;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace>;
  struct Apply;

  void add(const JsonPart& part);

  bool present_ = false;
  std::vector<Step> steps_;
};

}  // namespace ranktune::data::tokenizing
