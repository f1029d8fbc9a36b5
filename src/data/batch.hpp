// One variable-length pass: samples laid end to end, without padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_store.hpp"

namespace ranktune::data {

struct PassBatch {
  std::vector<std::int32_t> ids;        // [tokens]
  std::vector<std::int32_t> positions;  // [tokens], restart at 0 in each sample
  std::vector<std::int32_t> targets;  // [tokens], the next id of the same sample; -1: none, or not trained on
  std::vector<std::int32_t> cu_seqlens;  // [sequences + 1]
  std::vector<std::int64_t> samples;     // [sequences], index into the store
  std::int32_t max_seqlen = 0;
  std::int64_t target_tokens = 0;

  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t sequences() const { return static_cast<std::int64_t>(samples.size()); }
};

// Lays the samples (slot order, -1 skipped) out in passes of at most `max_tokens_per_pass` tokens, split at
// sample boundaries; a longer sample is a pass of its own. 0 means one pass. No samples: no passes.
std::vector<PassBatch> make_passes(const TokenStore& store, std::span<const std::int64_t> samples,
                                   std::int64_t max_tokens_per_pass);

}  // namespace ranktune::data
