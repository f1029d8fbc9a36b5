// Conversations as a chat template writes them. The templates are Jinja2, and Jinja2 itself renders them, in
// a Python process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/prompt.hpp"
#include "data/records.hpp"

namespace ranktune::data {

// The template of `file`, else of the model's folder: chat_template.jinja, else "chat_template" of
// tokenizer_config.json, of several the one named default. Its variables are the special tokens that the
// folder names, as in Transformers. Throws UserError where there is none.
ChatTemplate read_chat_template(const std::filesystem::path& folder,
                                const std::optional<std::filesystem::path>& file);

struct ChatRendering {
  std::string python = "python3";  // a path, or looked for in PATH; it has Jinja2
  bool spans = false;              // find the responses too
  // Called now and then with the number of rows done; may throw to stop.
  std::function<void(std::int64_t)> progress{};
};

// Every row as a text, in lines for parse_rendered: messages as they are, an instruction and its output as
// one turn of the user and one of the assistant. Responses are the template's {% generation %} blocks if it
// has any; else what the assistant's turn adds to the prompt that the template makes for it. Throws
// UserError, naming the row (from 1), where Python or Jinja2 is missing, the template refuses a row, or a
// response cannot be found.
std::string render_chats(std::span<const Row> rows, const ChatTemplate& chat, const ChatRendering& how);

// Lines [begin, end) of what render_chats gave.
std::vector<TrainingText> parse_rendered(std::string_view lines, std::int64_t begin, std::int64_t end);

}  // namespace ranktune::data
