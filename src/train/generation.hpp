// Writing a text on: one token after the other, greedily or by drawing.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"
#include "model/decoder.hpp"

namespace ranktune::train {

struct Sampling {
  double temperature = 0;  // 0: the likeliest token, always
  std::int64_t top_k = 0;  // draw from so many of the likeliest tokens; 0: all
  double top_p = 1;        // and of these from the fewest that hold so much of the probability
  std::uint64_t seed = 0;
};

// The token to follow, given the logits of all. Temperature, top_k and top_p act in this order, as in
// Transformers; `index` numbers the draws of a seed.
std::int32_t choose_token(std::span<const float> logits, const Sampling& sampling, std::uint64_t index);

struct Generation {
  std::int64_t max_new_tokens = 0;
  std::set<std::int32_t> stops;  // tokens that end the text and are not a part of it
  Sampling sampling;
  std::uint32_t first_draw = 0;  // keeps the draws of several texts apart
};

// Calls `next` with each new token; it returns false to stop. Reserves the decoder's activations for the
// prompt. The decoder has room for prompt and new tokens.
void generate(model::Decoder& decoder, const std::vector<std::int32_t>& prompt, const Generation& how,
              const std::function<bool(std::int32_t)>& next);

// Text of tokens that come one by one, in pieces that never end within a character.
class TextStream {
 public:
  TextStream(const data::Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt);
  // What the token adds to the text, empty while a character is not whole.
  std::string add(std::int32_t id);
  // The rest.
  std::string finish();

 private:
  const data::Tokenizer& tokenizer_;
  std::vector<std::int32_t>
      ids_;            // the last ones of the prompt, on which the text of the first new one depends
  std::size_t given_;  // bytes of their text that are not to be given any more
};

}  // namespace ranktune::train
