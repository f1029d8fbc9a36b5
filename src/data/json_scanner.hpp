// Finds where the values of a JSON text begin and end, with line numbers, before any of them is parsed: that
// is what lets an error name the row and its line, and rows be parsed on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ranktune::data {

// Part of a text, and the line (from 1) on which it starts.
struct JsonSpan {
  std::string_view text;
  std::int64_t line = 0;
};

// Where in which file, for error messages; row 0: not within a row.
struct JsonPlace {
  std::string_view file;
  std::int64_t row = 0;
  std::int64_t line = 0;
};

// Throws UserError "FILE: row R, line L: MESSAGE".
[[noreturn]] void json_error(const JsonPlace& place, std::string_view message);

// The word for what starts with `c`: "an object", "a number".
std::string_view json_kind(char c);

// Byte offset of the first invalid UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text);

// Moves over a text value by value, aware of strings and brackets only: a value that it steps over may still
// be malformed inside. Nesting is bounded, so hostile input cannot exhaust memory or stack.
class JsonScanner {
 public:
  static constexpr std::size_t kMaxDepth = 128;

  // `extent` is what the span is, for messages: a value may end before "the file" or "the line" does.
  JsonScanner(std::string_view file, JsonSpan span, std::string_view extent = "file")
      : file_(file), extent_(extent), text_(span.text), line_(span.line) {}

  // The next character that is not white space, '\0' at the end; nothing is consumed but the space before it.
  char peek();
  // Consumes `c` if it comes next.
  bool accept(char c);
  // Steps over one value: what comes next must start one.
  JsonSpan value();
  bool at_end() { return peek() == '\0' && position_ == text_.size(); }

  // The row that errors are about, from 1; 0 outside rows.
  void set_row(std::int64_t row) { row_ = row; }
  std::int64_t line() const { return line_; }
  [[noreturn]] void fail(std::string_view message) const;
  // "expected X, found Y", where Y is what comes next.
  [[noreturn]] void fail_expected(std::string_view expected);

 private:
  void step_over_string();
  void step_over_brackets();
  void step_over_word();

  std::string_view file_;
  std::string_view extent_;
  std::string_view text_;
  std::size_t position_ = 0;
  std::int64_t line_;
  std::int64_t row_ = 0;
};

}  // namespace ranktune::data
