// UTF-8 and the few character properties that the tokenizer asks for one character at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ranktune::data::tokenizing {

// Offset of the first byte that is not part of valid UTF-8 (no surrogates, no overlong forms); nullopt when
// all is.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// Bytes of the character that starts with `lead`, in valid UTF-8.
constexpr std::size_t utf8_length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// The character at `position` of valid UTF-8; moves `position` behind it.
char32_t next_code_point(std::string_view text, std::size_t& position);
// Start of the character that ends before `position` > 0.
std::size_t previous_character(std::string_view text, std::size_t position);
void append_utf8(std::string& out, char32_t code_point);
// Appends `bytes`, each maximal ill-formed part replaced by U+FFFD.
void append_utf8_lossy(std::string& out, std::string_view bytes);

// Unicode's White_Space.
bool is_white_space(char32_t code_point);
// Nd, Nl, No.
bool is_numeric(char32_t code_point);
// \w in the sense of Unicode's regular expression annex C.
bool is_word(char32_t code_point);
// Appends the lower-case form, character by character (no final sigma).
void append_lowercase(std::string& out, char32_t code_point);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
// Appends `text` in the normal form; characters younger than the reference's table stay as they are.
void append_normalized(std::string& out, std::string_view text, NormalForm form);

}  // namespace ranktune::data::tokenizing
