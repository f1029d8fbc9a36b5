// Turns a row into the one text that is trained on, and says which parts of it are responses.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/records.hpp"

namespace ranktune::data {

enum class PromptTemplate {
  unsloth,  // alpaca rows: the text of Unsloth's CLI, indentation included
  alpaca,   // alpaca rows: Stanford's original
  plain,    // prompt and completion, or a text: nothing around them
  file,     // alpaca rows: a file with {instruction}, {input} and {output}
  chat      // messages, or instruction and output as turns: a chat template (chat.hpp)
};

struct ChatTemplate {
  std::string text{};       // Jinja2
  std::string variables{};  // a JSON object: what the template gets besides the messages
  std::string date{};       // YYYY-MM-DD, what strftime_now tells; empty: a template that asks is refused
};

// A template, and what the file holds where it is one.
struct PromptForm {
  PromptForm(PromptTemplate kind) : form(kind) {}  // NOLINT(google-explicit-constructor): most have no text
  PromptTemplate form;
  std::string text{};
  ChatTemplate chat{};
};

// Reads a template file. {output} has to stand in it once and {instruction} at least once; other braces are
// text, and one line break at the end does not count. Throws UserError.
PromptForm read_prompt_file(const std::filesystem::path& path);

// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct TrainingText {
  std::string text;
  std::vector<TextSpan> responses{};  // in order, apart; the end markers that a model has to write are within
};

// The prompt up to where the answer starts, without the answer and EOS. For every template but chat.
std::string render_prompt(const PromptForm& form, const Row& row);
// Prompt, output (and what a template file has behind it), EOS; from the output on it is the response.
TrainingText render_text(const PromptForm& form, const Row& row, std::string_view eos_token);

}  // namespace ranktune::data
