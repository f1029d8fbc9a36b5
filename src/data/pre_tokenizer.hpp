// The "pre_tokenizer" of tokenizer.json: cuts a text into the words that merges never cross.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer_part.hpp"
#include "data/tokenizer_regex.hpp"

namespace ranktune::data::tokenizing {

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view)>;

  // What cutting writes to; one per thread.
  class Scratch {
   public:
    explicit Scratch(const PreTokenizer& owner) : buffers_(owner.stages_.size()) {}

   private:
    friend class PreTokenizer;
    struct Buffers {
      std::string prefixed, mapped;
    };
    std::vector<Buffers> buffers_;  // [stages]
  };

  PreTokenizer() = default;
  // Throws UserError for a type that is not supported.
  explicit PreTokenizer(const JsonPart& part) { add(part); }

  // True when the last step maps bytes to their printable stand-ins and nothing before it does.
  bool ends_in_byte_level() const;
  // Leaves that last mapping to the caller: words then come as plain bytes.
  void leave_bytes();

  // Calls `sink` for every word, none of them empty. `at_origin`: the text begins where the whole text does.
  void run(std::string_view text, bool at_origin, Scratch& scratch, RegexScratch& regex,
           const Sink& sink) const;

 private:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Split {
    Pattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct ByteLevel {
    bool add_prefix_space;
    std::optional<Pattern> pattern;
    bool map_bytes = true;
  };
  enum class Prepend { first, always, never };
  struct Metaspace {
    std::string replacement;
    Prepend prepend;
    bool split;
  };
  struct Digits {
    bool individual;
  };
  using Stage = std::variant<Split, ByteLevel, Metaspace, Digits>;
  struct Piece {
    std::string_view text;
    bool at_origin;

    Piece part(Span span) const {
      return {text.substr(span.begin, span.end - span.begin), at_origin && span.begin == 0};
    }
  };
  class Splitter;
  struct Run;

  void add(const JsonPart& part);
  void add_split(const JsonPart& part);
  void add_metaspace(const JsonPart& part);

  std::vector<Stage> stages_;  // nested Sequences laid flat
};

}  // namespace ranktune::data::tokenizing
