// Turns a row into the one text that is trained on.
#pragma once

#include <string>
#include <string_view>

#include "data/records.hpp"

namespace ranktune::data {

// unsloth: the text of Unsloth's CLI, indentation included; alpaca: Stanford's original.
enum class PromptTemplate { unsloth, alpaca };

// The prompt up to where the answer starts, without the answer and EOS.
std::string render_prompt(PromptTemplate form, const AlpacaRow& row);
// Prompt, output, EOS.
std::string render_text(PromptTemplate form, const AlpacaRow& row, std::string_view eos_token);

}  // namespace ranktune::data
