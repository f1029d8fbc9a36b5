#include "data/prompt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"
#include "data/json_scanner.hpp"

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

constexpr std::string_view kOutput = "{output}";

// The template with the row's texts in the places of their names, in one pass: what a row holds is never
// looked at again.
std::string fill(std::string_view form, const Row& row) {
  const std::pair<std::string_view, const std::string&> places[] = {{"{instruction}", row.instruction},
                                                                    {"{input}", row.input}};
  std::string text;
  while (!form.empty()) {
    const auto brace = std::min(form.find('{'), form.size());
    text.append(form.substr(0, brace));
    form.remove_prefix(brace);
    if (form.empty()) break;
    const auto* const place = std::find_if(std::begin(places), std::end(places),
                                           [&](const auto& entry) { return form.starts_with(entry.first); });
    const bool found = place != std::end(places);
    text.append(found ? std::string_view(place->second) : form.substr(0, 1));
    form.remove_prefix(found ? place->first.size() : 1);
  }
  return text;
}

}  // namespace

PromptForm read_prompt_file(const std::filesystem::path& path) {
  PromptForm form = PromptTemplate::file;
  form.text = read_file(path);
  if (form.text.ends_with('\n')) form.text.pop_back();
  const auto output = form.text.find(kOutput);
  if (output == std::string::npos || form.text.find(kOutput, output + 1) != std::string::npos) {
    throw UserError(fmt::format("{}: a prompt template has {{output}} in it once, but this one has it {}",
                                path.string(), output == std::string::npos ? "nowhere" : "more than once"));
  }
  if (form.text.find("{instruction}") == std::string::npos) {
    throw UserError(
        fmt::format("{}: a prompt template has {{instruction}} in it, but this one does not", path.string()));
  }
  if (find_invalid_utf8(form.text) != std::string_view::npos) {
    throw UserError(fmt::format("{}: a prompt template is UTF-8, but this one is not", path.string()));
  }
  return form;
}

std::string render_prompt(const PromptForm& form, const Row& row) {
  switch (form.form) {
    case PromptTemplate::unsloth:
      return render(kWithInput, kIndent, true, row);
    case PromptTemplate::alpaca: {
      const bool has_input = !row.input.empty();
      return render(has_input ? kWithInput : kWithoutInput, "", has_input, row);
    }
    case PromptTemplate::plain:
      return row.instruction;
    case PromptTemplate::file:
      return fill(std::string_view(form.text).substr(0, form.text.find(kOutput)), row);
    case PromptTemplate::chat:
      break;  // not by us
  }
  throw Failure("unknown prompt template " + std::to_string(static_cast<int>(form.form)));
}

TrainingText render_text(const PromptForm& form, const Row& row, std::string_view eos_token) {
  TrainingText rendered{render_prompt(form, row)};
  const std::size_t begin = rendered.text.size();
  rendered.text.append(row.output);
  if (form.form == PromptTemplate::file) {
    rendered.text.append(
        fill(std::string_view(form.text).substr(form.text.find(kOutput) + kOutput.size()), row));
  }
  rendered.text.append(eos_token);
  rendered.responses.push_back({begin, rendered.text.size()});
  return rendered;
}

}  // namespace ranktune::data
