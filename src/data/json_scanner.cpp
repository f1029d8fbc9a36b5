#include "data/json_scanner.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>
#include <cstring>

#include "base/error.hpp"

namespace ranktune::data {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

}  // namespace

void json_error(const JsonPlace& place, std::string_view message) {
  std::string where(place.file);
  if (place.row > 0) where += fmt::format(": row {}, line {}", place.row, place.line);
  if (place.row <= 0 && place.line > 0) where += fmt::format(": line {}", place.line);
  throw UserError(fmt::format("{}: {}", where, message));
}

std::string_view json_kind(char c) {
  switch (c) {
    case '\0':
      return "the end";
    case '{':
      return "an object";
    case '[':
      return "an array";
    case '"':
      return "a string";
    case 't':
    case 'f':
      return "true or false";
    case 'n':
      return "null";
    default:
      return (c >= '0' && c <= '9') || c == '-' ? "a number" : "something that is not JSON";
  }
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080U) == 0) {  // ASCII, which most datasets are for the most part
        at += sizeof(eight);
        continue;
      }
    }
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t codepoint = 0;
    const auto left = static_cast<utf8proc_ssize_t>(text.size() - at);
    const auto length =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at), left, &codepoint);
    if (length <= 0) return at;
    at += static_cast<std::size_t>(length);
  }
  return std::string_view::npos;
}

char JsonScanner::peek() {
  while (position_ < text_.size() && is_space(text_[position_])) {
    if (text_[position_] == '\n') ++line_;
    ++position_;
  }
  return position_ < text_.size() ? text_[position_] : '\0';
}

bool JsonScanner::accept(char c) {
  if (peek() != c || position_ == text_.size()) return false;
  ++position_;
  return true;
}

JsonSpan JsonScanner::value() {
  const char first = peek();
  const std::size_t begin = position_;
  const std::int64_t line = line_;
  switch (first) {
    case '{':
    case '[':
      step_over_brackets();
      break;
    case '"':
      step_over_string();
      break;
    case '\0':
    case ',':
    case ':':
    case ']':
    case '}':
      fail_expected("a value");
    default:
      step_over_word();
  }
  return {text_.substr(begin, position_ - begin), line};
}

void JsonScanner::fail(std::string_view message) const {
  json_error({file_, row_, line_}, message);
}

void JsonScanner::fail_expected(std::string_view expected) {
  const char next = peek();
  const bool is_mark = next != '\0' && std::string_view(",:]}").find(next) != std::string_view::npos;
  const bool is_zero_byte = next == '\0' && position_ < text_.size();
  std::string found(is_zero_byte ? "a zero byte" : json_kind(next));
  if (is_mark) found = fmt::format("'{}'", next);
  fail(fmt::format("expected {}, found {}", expected, found));
}

void JsonScanner::step_over_string() {
  const std::int64_t start = line_;
  for (++position_; position_ < text_.size(); ++position_) {
    switch (text_[position_]) {
      case '"':
        ++position_;
        return;
      case '\\':
        ++position_;
        if (position_ < text_.size() && text_[position_] != '\n') break;
        [[fallthrough]];
      case '\n':
        fail("the line ends inside a string (a line break in a string is written \\n)");
      default:
        break;
    }
  }
  line_ = start;
  fail(fmt::format("the {} ends inside a string", extent_));
}

void JsonScanner::step_over_brackets() {
  std::array<char, kMaxDepth> closing{};
  std::size_t depth = 0;
  const std::int64_t start = line_;
  while (position_ < text_.size()) {
    const char c = text_[position_];
    switch (c) {
      case '"':
        step_over_string();
        continue;
      case '\n':
        ++line_;
        break;
      case '{':
      case '[':
        if (depth == kMaxDepth) fail(fmt::format("nested more than {} levels deep", kMaxDepth));
        closing[depth++] = c == '{' ? '}' : ']';
        break;
      case '}':
      case ']':
        if (closing[depth - 1] != c) fail(fmt::format("expected '{}', found '{}'", closing[depth - 1], c));
        if (--depth == 0) {
          ++position_;
          return;
        }
        break;
      default:
        break;
    }
    ++position_;
  }
  line_ = start;
  fail(fmt::format("what starts here is not closed before the {} ends", extent_));
}

void JsonScanner::step_over_word() {
  while (position_ < text_.size() && !is_space(text_[position_]) &&
         std::string_view(",:[]{}\"").find(text_[position_]) == std::string_view::npos) {
    ++position_;
  }
}

}  // namespace ranktune::data
