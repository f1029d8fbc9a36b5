#include "data/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "data/unicode_tables.hpp"

namespace ranktune::data::tokenizing {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

bool in_ranges(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), code_point,
                       [](char32_t c, const CodePointRange& range) { return c < range.first; });
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

struct Sequence {
  std::size_t length;  // bytes read: the whole character, or the maximal ill-formed part
  bool valid;
};

// Reads one character (Unicode 15, table 3-7: the second byte's range depends on the lead).
Sequence read_sequence(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t length = utf8_length(lead);
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

// Blocks in which no character changes under NFC, alone or next to another of them.
bool surely_nfc(char32_t c) {
  return c < 0x300 || (c >= 0x3400 && c <= 0x9FFF) || (c >= 0x3001 && c <= 0x3029) ||
         (c >= 0x3030 && c <= 0x3098) || (c >= 0x309B && c <= 0x30FF) || (c >= 0xAC00 && c <= 0xD7A3) ||
         (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) || (c >= 0xFF00 && c <= 0xFFEF) ||
         (c >= 0x1F300 && c <= 0x1FAFF);
}

bool is_normal_already(std::string_view text, NormalForm form) {
  const char32_t ascii_end = 0x80;
  std::size_t position = 0;
  while (position < text.size()) {
    const char32_t c = next_code_point(text, position);
    if (c >= ascii_end && (form != NormalForm::nfc || !surely_nfc(c))) return false;
  }
  return true;
}

void decompose(std::vector<utf8proc_int32_t>& out, char32_t code_point, NormalForm form) {
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts.data(),
                                             parts.size(), options, &boundary);
  RT_CHECK(count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "utf8proc could not decompose");
  out.insert(out.end(), parts.begin(), parts.begin() + count);
}

// Canonical ordering: runs of combining marks sorted by class. Sorted here, since utf8proc's own is
// quadratic.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto begin = text.begin(); begin != text.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, text.end(), [&](auto c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

// Orders, composes where the form asks for it, appends, and empties `text`.
void finish_run(std::string& out, std::vector<utf8proc_int32_t>& text, NormalForm form) {
  order_marks(text);
  auto count = static_cast<utf8proc_ssize_t>(text.size());
  if (form == NormalForm::nfc || form == NormalForm::nfkc) {
    count = utf8proc_normalize_utf32(text.data(), count,
                                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    RT_CHECK(count >= 0, "utf8proc could not compose");
  }
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(text[i]));
  text.clear();
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t block = 0;
    if (at + sizeof(block) <= text.size()) {
      std::memcpy(&block, text.data() + at, sizeof(block));
      if ((block & 0x8080808080808080U) == 0) {
        at += sizeof(block);
        continue;
      }
    }
    const Sequence sequence = read_sequence(text, at);
    if (!sequence.valid) return at;
    at += sequence.length;
  }
  return std::nullopt;
}

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data()) + position;
  const std::size_t length = utf8_length(bytes[0]);
  position += length;
  switch (length) {
    case 1:
      return bytes[0];
    case 2:
      return static_cast<char32_t>((bytes[0] & 0x1F) << 6 | (bytes[1] & 0x3F));
    case 3:
      return static_cast<char32_t>((bytes[0] & 0x0F) << 12 | (bytes[1] & 0x3F) << 6 | (bytes[2] & 0x3F));
    default:
      return static_cast<char32_t>((bytes[0] & 0x07) << 18 | (bytes[1] & 0x3F) << 12 |
                                   (bytes[2] & 0x3F) << 6 | (bytes[3] & 0x3F));
  }
}

std::size_t previous_character(std::string_view text, std::size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80);
  return position;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

void append_utf8_lossy(std::string& out, std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const Sequence sequence = read_sequence(bytes, at);
    out += sequence.valid ? bytes.substr(at, sequence.length) : kReplacementCharacter;
    at += sequence.length;
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_numeric(char32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  return in_ranges(numeric_ranges(), code_point);
}

bool is_word(char32_t code_point) {
  return in_ranges(word_ranges(), code_point);
}

void append_lowercase(std::string& out, char32_t code_point) {
  constexpr char32_t kDottedCapitalI = 0x130;  // the one character whose lower-case form is two
  if (code_point == kDottedCapitalI) {
    out += "i\xCC\x87";
    return;
  }
  const auto later = later_lowercase();
  const auto found = std::lower_bound(later.begin(), later.end(), code_point,
                                      [](const auto& pair, char32_t c) { return pair.first < c; });
  if (found != later.end() && found->first == code_point) {
    append_utf8(out, found->second);
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
  }
}

void append_normalized(std::string& out, std::string_view text, NormalForm form) {
  if (is_normal_already(text, form)) {
    out += text;
    return;
  }
  std::vector<utf8proc_int32_t> run;
  for (std::size_t position = 0; position < text.size();) {
    const char32_t c = next_code_point(text, position);
    if (c >= 0x80 && in_ranges(ranges_unknown_to_normalizers(), c)) {
      finish_run(out, run, form);
      append_utf8(out, c);
    } else if (c < 0x80) {
      run.push_back(static_cast<utf8proc_int32_t>(c));
    } else {
      decompose(run, c, form);
    }
  }
  finish_run(out, run, form);
}

}  // namespace ranktune::data::tokenizing
