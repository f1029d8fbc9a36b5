// Where the Unicode data of Hugging Face's `tokenizers` differs from that of the libraries we use, so that
// ids are equal for characters of any age. The tables are written by unicode_tables.py.
#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace ranktune::data::tokenizing {

struct CodePointRange {
  char32_t first, last;
};

// What Unicode 15 and 16 added to a general category or script since 14, the oldest PCRE2 table we accept.
struct PropertyAdditions {
  std::string_view name;
  std::span<const CodePointRange> ranges;
};

// All of Nd, Nl and No: the Digits pre-tokenizer.
std::span<const CodePointRange> numeric_ranges();
// \w of `single_word` added tokens.
std::span<const CodePointRange> word_ranges();
// Characters that the normalisation forms leave alone, since the reference's table is older than they are.
std::span<const CodePointRange> ranges_unknown_to_normalizers();
std::span<const PropertyAdditions> property_additions();
// Simple lower-case mappings newer than Unicode 14.
std::span<const std::pair<char32_t, char32_t>> later_lowercase();

}  // namespace ranktune::data::tokenizing
