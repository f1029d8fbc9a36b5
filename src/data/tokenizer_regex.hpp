// Patterns of tokenizer.json. They are written for Oniguruma; we match with PCRE2, after a translation that
// keeps the meaning: what \s, \w, \d, \h, \v and \p{..} contain (Unicode 16), what {n,m}+ means, where
// options reach.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "data/tokenizer_part.hpp"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace ranktune::data::tokenizing {

// The pattern in PCRE2's words. Throws UserError that names the construct where the two differ beyond repair.
std::string pcre_from_oniguruma(std::string_view pattern);

// A part of a text: bytes [begin, end).
struct Span {
  std::size_t begin, end;
};

// What matching needs to write to; one per thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

class Regex {
 public:
  // Translates and compiles. Throws UserError.
  explicit Regex(std::string_view oniguruma_pattern);

  // The first match that begins at or after `from`, in valid UTF-8. Throws Failure when matching gives up.
  std::optional<Span> search(std::string_view text, std::size_t from, RegexScratch& scratch) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool compiled_to_machine_code_ = false;
};

// {"String": ...} or {"Regex": ...}.
class Pattern {
 public:
  explicit Pattern(const JsonPart& part);
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}

  std::optional<Span> search(std::string_view text, std::size_t from, RegexScratch& scratch) const;

  // Calls visit(Span, is_match) for matches and the text between them, in order and without gaps; an empty
  // match is visited too, unless it directly follows a match.
  template <typename Visit>
  void for_each_part(std::string_view text, RegexScratch& scratch, Visit&& visit) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

template <typename Visit>
void Pattern::for_each_part(std::string_view text, RegexScratch& scratch, Visit&& visit) const {
  std::size_t from = 0;
  std::size_t done = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const auto match = search(text, from, scratch);
    if (!match) break;
    if (match->begin == match->end && last_end == match->end) {
      ++from;  // over one character
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    if (done < match->begin) visit(Span{done, match->begin}, false);
    visit(*match, true);
    from = done = match->end;
    last_end = match->end;
  }
  if (done < text.size()) visit(Span{done, text.size()}, false);
}

}  // namespace ranktune::data::tokenizing
