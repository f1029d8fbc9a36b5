#include "train/evaluation.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/batch.hpp"
#include "train/memory_plan.hpp"

namespace ranktune::train {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What one batch came to. Sent between ranks as it lies in memory; a rank that was asked to stop sends fewer.
struct BatchSum {
  double nll = 0;
  std::int64_t tokens = 0;
  std::int64_t target_tokens = 0;
};

std::vector<std::int64_t> samples_of(const data::TokenStore& store, std::int64_t batch, std::int64_t index) {
  const std::int64_t begin = index * batch;
  std::vector<std::int64_t> samples(static_cast<std::size_t>(std::min(batch, store.samples() - begin)));
  std::iota(samples.begin(), samples.end(), begin);
  return samples;
}

std::int64_t batches_of(const data::TokenStore& store, std::int64_t batch) {
  return (store.samples() + batch - 1) / batch;
}

}  // namespace

EvaluationPlan plan_evaluation(const model::Decoder& decoder, const data::TokenStore& store,
                               std::int64_t batch, std::int64_t reserved_tokens, std::int64_t recomputed,
                               std::int64_t free_bytes) {
  std::int64_t largest = 1;
  std::int64_t longest = 1;
  for (std::int64_t index = 0; index < batches_of(store, batch); ++index) {
    std::int64_t tokens = 0;
    for (const std::int64_t sample : samples_of(store, batch, index)) {
      const auto length = static_cast<std::int64_t>(store.sample(sample).size());
      tokens += length;
      longest = std::max(longest, length);
    }
    largest = std::max(largest, tokens);
  }
  const auto fits = [&](std::int64_t tokens) {
    return tokens <= reserved_tokens || pass_fits(decoder, tokens, longest, recomputed, free_bytes);
  };
  EvaluationPlan plan;
  plan.batch = batch;
  plan.reserved_tokens = std::max(largest, reserved_tokens);
  if (fits(largest)) return plan;
  if (!fits(longest)) {
    throw UserError("the longest sample to evaluate (" + std::to_string(longest) +
                    " tokens) does not fit into memory; use a smaller --max_seq_length");
  }
  // Halved until it fits: there is one pass of each size at most, so a finer search gains nothing.
  plan.max_tokens_per_pass = largest;
  while (!fits(plan.max_tokens_per_pass)) {
    plan.max_tokens_per_pass = std::max(longest, plan.max_tokens_per_pass / 2);
  }
  plan.reserved_tokens = std::max(plan.max_tokens_per_pass, reserved_tokens);
  return plan;
}

std::optional<EvaluationOutcome> evaluate(model::Decoder& decoder, const data::TokenStore& store,
                                          const EvaluationPlan& plan, const cluster::Session& session,
                                          const cluster::SignalWatcher& signals, cluster::Watchdog& watchdog,
                                          const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const double begin = steady_seconds();
  const std::int64_t batches = batches_of(store, plan.batch);
  const std::int64_t ranks = session.world_size();
  const std::int64_t own = (batches - session.rank() + ranks - 1) / ranks;
  const at::Device device = decoder.options().device;
  const at::Tensor sums = at::zeros({own}, at::TensorOptions().dtype(at::kDouble).device(device));
  std::vector<BatchSum> mine;
  for (std::int64_t i = 0; i < own && signals.reason() == cluster::StopReason::none; ++i) {
    BatchSum batch;
    at::Tensor sum = sums.narrow(0, i, 1);
    const auto samples = samples_of(store, plan.batch, session.rank() + i * ranks);
    for (const data::PassBatch& pass : data::make_passes(store, samples, plan.max_tokens_per_pass)) {
      decoder.evaluate(model::DevicePass(pass, model::exact_shape(pass), device), sum);
      batch.tokens += pass.tokens();
      batch.target_tokens += pass.target_tokens;
    }
    mine.push_back(batch);
    watchdog.progress();
    if (progress) progress(i + 1, own);
  }
  const at::Tensor host = sums.cpu();
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i].nll = host.data_ptr<double>()[i];

  const auto all =
      session.gather_all({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(BatchSum)});
  EvaluationOutcome outcome;
  double nll = 0;
  for (std::int64_t index = 0; index < batches; ++index) {
    const std::string& part = all[static_cast<std::size_t>(index % ranks)];
    const auto offset = static_cast<std::size_t>(index / ranks) * sizeof(BatchSum);
    if (offset + sizeof(BatchSum) > part.size()) return std::nullopt;
    BatchSum batch;
    std::memcpy(&batch, part.data() + offset, sizeof(BatchSum));
    nll += batch.nll;
    outcome.tokens += batch.tokens;
    outcome.target_tokens += batch.target_tokens;
  }
  outcome.samples = store.samples();
  outcome.loss = nll / static_cast<double>(outcome.target_tokens);
  outcome.perplexity = std::exp(outcome.loss);
  outcome.seconds = steady_seconds() - begin;
  return outcome;
}

}  // namespace ranktune::train
