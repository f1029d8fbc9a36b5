// Turns a row into the one text that is trained on.
#pragma once

#include <string>
#include <string_view>

#include "data/records.hpp"

namespace ranktune::data {

enum class PromptTemplate {
  unsloth,  // alpaca rows: the text of Unsloth's CLI, indentation included
  alpaca,   // alpaca rows: Stanford's original
  plain     // prompt and completion, or a text: nothing around them
};

// The prompt up to where the answer starts, without the answer and EOS.
std::string render_prompt(PromptTemplate form, const Row& row);
// Prompt, output, EOS.
std::string render_text(PromptTemplate form, const Row& row, std::string_view eos_token);

}  // namespace ranktune::data
