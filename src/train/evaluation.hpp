// The loss of a set of samples under the model as it is: no dropout, no gradient.
//
// Batches are consecutive samples of the set and are dealt to the ranks in turn. Each batch has its sum of
// token NLLs in fp64 to itself, and the sums are added in the order of the batches, so the loss has the same
// bits on any number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "cluster/session.hpp"
#include "cluster/signals.hpp"
#include "cluster/watchdog.hpp"
#include "data/token_store.hpp"
#include "model/decoder.hpp"

namespace ranktune::train {

struct EvaluationPlan {
  std::int64_t batch = 1;                // samples
  std::int64_t max_tokens_per_pass = 0;  // a batch is split above this, at sample boundaries; 0: never
  std::int64_t reserved_tokens = 1;      // what the decoder has to reserve
};

// How a rank's batches of `batch` samples run in buffers that training needs `reserved_tokens` of (0: there
// is no training): whole where the largest fits into memory, else split. Throws UserError where the longest
// sample does not fit. The same on all ranks where free_bytes is.
EvaluationPlan plan_evaluation(const model::Decoder& decoder, const data::TokenStore& store,
                               std::int64_t batch, std::int64_t reserved_tokens, std::int64_t recomputed,
                               std::int64_t free_bytes);

struct EvaluationOutcome {
  double loss = 0;        // nats per target token
  double perplexity = 0;  // exp(loss)
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::int64_t target_tokens = 0;
  double seconds = 0;  // on this rank
};

// Collective; the decoder has reserved the plan's tokens. Every batch marks progress for the watchdog and
// polls the signals; nothing comes back, on any rank, where a stop was asked for on any. `progress` is called
// with batches done and batches to do on this rank.
std::optional<EvaluationOutcome> evaluate(model::Decoder& decoder, const data::TokenStore& store,
                                          const EvaluationPlan& plan, const cluster::Session& session,
                                          const cluster::SignalWatcher& signals, cluster::Watchdog& watchdog,
                                          const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace ranktune::train
