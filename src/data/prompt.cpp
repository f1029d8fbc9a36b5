#include "data/prompt.hpp"

#include <string>

#include "base/error.hpp"

namespace ranktune::data {
namespace {

constexpr std::string_view kWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.";
constexpr std::string_view kWithoutInput =
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.";

// The template of Unsloth's script stands in an indented Python string, so its own lines after the first
// carry four spaces; further lines of a content do not.
constexpr std::string_view kIndent = "    ";

// An empty line, "### <heading>:" and the line on which its content starts.
void append_block(std::string& text, std::string_view indent, std::string_view heading,
                  std::string_view content) {
  text.append("\n\n").append(indent).append("### ").append(heading).append(":\n");
  text.append(indent).append(content);
}

std::string render(std::string_view first_line, std::string_view indent, bool has_input, const Row& row) {
  std::string text;
  text.reserve(first_line.size() + row.instruction.size() + row.input.size() + row.output.size() + 128);
  text.append(first_line);
  append_block(text, indent, "Instruction", row.instruction);
  if (has_input) append_block(text, indent, "Input", row.input);
  append_block(text, indent, "Response", "");
  return text;
}

}  // namespace

std::string render_prompt(PromptTemplate form, const Row& row) {
  switch (form) {
    case PromptTemplate::unsloth:
      return render(kWithInput, kIndent, true, row);
    case PromptTemplate::alpaca: {
      const bool has_input = !row.input.empty();
      return render(has_input ? kWithInput : kWithoutInput, "", has_input, row);
    }
    case PromptTemplate::plain:
      return row.instruction;
  }
  throw Failure("unknown prompt template " + std::to_string(static_cast<int>(form)));
}

std::string render_text(PromptTemplate form, const Row& row, std::string_view eos_token) {
  return render_prompt(form, row).append(row.output).append(eos_token);
}

}  // namespace ranktune::data
