// What --show_sample prints: samples as training sees them.
#pragma once

#include <cstdint>
#include <string>

#include "data/token_store.hpp"
#include "data/tokenizer.hpp"

namespace ranktune::app {

// A sample's text, and its tokens one a line: position in the sample, * where it is a target, id, and its
// text as a JSON string.
std::string sample_table(const data::TokenStore& store, std::int64_t sample,
                         const data::Tokenizer& tokenizer);

}  // namespace ranktune::app
