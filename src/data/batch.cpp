#include "data/batch.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace ranktune::data {
namespace {

void append_sample(PassBatch& pass, const TokenStore& store, std::int64_t index) {
  const auto ids = store.sample(index);
  RT_CHECK(!ids.empty(), "an empty sample cannot be part of a pass");
  const auto length = static_cast<std::int64_t>(ids.size());
  RT_CHECK(pass.tokens() + length <= std::numeric_limits<std::int32_t>::max(),
           "a pass holds fewer than 2^31 tokens");
  pass.ids.insert(pass.ids.end(), ids.begin(), ids.end());
  for (std::int64_t position = 0; position < length; ++position) {
    pass.positions.push_back(static_cast<std::int32_t>(position));
  }
  const auto trained = store.trained_of(index);
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const bool is_target = trained.empty() || trained[i] != 0;
    pass.targets.push_back(is_target ? ids[i] : -1);
    if (is_target) ++pass.target_tokens;
  }
  pass.targets.push_back(-1);
  pass.cu_seqlens.push_back(static_cast<std::int32_t>(pass.tokens()));
  pass.samples.push_back(index);
  pass.max_seqlen = std::max(pass.max_seqlen, static_cast<std::int32_t>(length));
}

PassBatch empty_pass() {
  PassBatch pass;
  pass.cu_seqlens.push_back(0);
  return pass;
}

}  // namespace

std::vector<PassBatch> make_passes(const TokenStore& store, std::span<const std::int64_t> samples,
                                   std::int64_t max_tokens_per_pass) {
  RT_CHECK(max_tokens_per_pass >= 0, "max_tokens_per_pass is positive, or 0 for one pass");
  std::vector<PassBatch> passes;
  for (const std::int64_t index : samples) {
    if (index == -1) continue;
    const auto length = static_cast<std::int64_t>(store.sample(index).size());
    const bool fits = max_tokens_per_pass == 0 ||
                      (!passes.empty() && passes.back().tokens() + length <= max_tokens_per_pass);
    if (passes.empty() || !fits) passes.push_back(empty_pass());
    append_sample(passes.back(), store, index);
  }
  return passes;
}

}  // namespace ranktune::data
