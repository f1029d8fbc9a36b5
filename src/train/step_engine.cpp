#include "train/step_engine.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "train/memory_plan.hpp"

namespace ranktune::train {
namespace {

constexpr std::int64_t kMebibyte = 1 << 20;

void* current_stream(bool cuda) {
  return cuda ? at::cuda::getCurrentCUDAStream().stream() : nullptr;
}

}  // namespace

struct StepClock::Impl {
  bool cuda = false;
  std::array<at::cuda::CUDAEvent, 4> events{
      at::cuda::CUDAEvent(cudaEventDefault), at::cuda::CUDAEvent(cudaEventDefault),
      at::cuda::CUDAEvent(cudaEventDefault), at::cuda::CUDAEvent(cudaEventDefault)};
  std::array<double, 4> times{};
};

StepClock::StepClock(bool cuda) : impl_(std::make_unique<Impl>()) {
  impl_->cuda = cuda;
}
StepClock::~StepClock() = default;
StepClock::StepClock(StepClock&&) noexcept = default;
StepClock& StepClock::operator=(StepClock&&) noexcept = default;

void StepClock::mark(std::size_t which) {
  if (impl_->cuda) {
    impl_->events[which].record();
  } else {
    impl_->times[which] = steady_seconds();
  }
}

void StepClock::wait() {
  if (impl_->cuda) impl_->events[3].synchronize();
}

double StepClock::seconds(std::size_t from, std::size_t to) const {
  if (impl_->cuda) return impl_->events[from].elapsed_time(impl_->events[to]) * 1e-3;
  return impl_->times[to] - impl_->times[from];
}

StepEngine::StepEngine(model::Decoder& decoder, const OptimizerSettings& settings,
                       cluster::Communicator& communicator, cluster::Watchdog* watchdog)
    : decoder_(decoder),
      settings_(settings),
      communicator_(communicator),
      watchdog_(watchdog),
      cuda_(decoder.options().device.is_cuda()),
      buffers_(decoder.layout(), communicator.world_size(), decoder.options().device, !settings.eight_bit),
      scatter_(decoder.segments()),
      runner_(decoder) {
  if (settings.eight_bit) {
    std::vector<kernels::FlatSpan> tensors;
    for (const model::FlatTensor& tensor : decoder.layout().tensors)
      tensors.push_back({tensor.offset, tensor.rows * tensor.columns});
    adamw_8bit_.emplace(tensors, decoder.layout().elements, decoder.options().device);
  }
  const auto device = at::TensorOptions().device(decoder.options().device);
  hyper_ = at::zeros({3}, device.dtype(at::kFloat));
  outcome_ = at::zeros({8}, device.dtype(at::kFloat));
  scratch_ = at::zeros({4096}, device.dtype(at::kDouble));
  nll_sum_ = at::zeros({1}, device.dtype(at::kDouble));
  step_ = at::zeros({1}, device.dtype(at::kLong));
}

void StepEngine::reserve(std::int64_t tokens, std::int64_t recomputed) {
  runner_.reset();
  decoder_.reserve(runner_.padded(tokens), recomputed);
}

std::vector<std::pair<std::string, at::Tensor>> StepEngine::state() const {
  std::vector<std::pair<std::string, at::Tensor>> all{{"parameters", buffers_.master}};
  if (adamw_8bit_) {
    for (auto& entry : adamw_8bit_->state()) all.push_back(std::move(entry));
  } else {
    all.emplace_back("exp_avg", buffers_.exp_avg);
    all.emplace_back("exp_avg_sq", buffers_.exp_avg_sq);
  }
  return all;
}

void StepEngine::publish_master() {
  scatter_(buffers_.master);
}

void StepEngine::reduce(void* stream) {
  if (watchdog_ != nullptr) watchdog_->collective_started("all-reduce", buffers_.gradient_and_tail.nbytes());
  communicator_.all_reduce_sum(buffers_.gradient_and_tail.data_ptr<float>(),
                               static_cast<std::size_t>(buffers_.gradient_and_tail.numel()), stream);
  if (watchdog_ != nullptr) watchdog_->collective_finished();
}

void StepEngine::send_stats() {
  buffers_.rank_stats.zero_();
  if (unsent_stats_.empty()) return;
  const RankStats& stats = unsent_stats_.front();
  const at::Tensor values =
      at::tensor({static_cast<float>(stats.step), static_cast<float>(stats.tokens),
                  static_cast<float>(stats.compute_seconds), static_cast<float>(stats.waiting_seconds),
                  static_cast<float>(stats.memory_bytes / kMebibyte)});
  buffers_.rank_stats[communicator_.rank()].copy_(cuda_ ? values.pin_memory() : values,
                                                  /*non_blocking=*/true);
  unsent_stats_.pop_front();
}

std::vector<RankStats> StepEngine::take_unsent_stats() {
  std::vector<RankStats> all(unsent_stats_.begin(), unsent_stats_.end());
  unsent_stats_.clear();
  return all;
}

void StepEngine::launch(std::int64_t step, double learning_rate, std::span<const data::PassBatch> passes,
                        double stop) {
  const double begin = steady_seconds();
  const std::int64_t readback_length = 8 + buffers_.rank_stats.numel();
  Pending pending{{},
                  at::empty({readback_length}, at::TensorOptions().dtype(at::kFloat).pinned_memory(cuda_)),
                  StepClock(cuda_)};
  pending.outcome.step = step;
  std::int64_t targets = 0;
  for (const data::PassBatch& pass : passes) {
    targets += pass.target_tokens;
    pending.outcome.own_tokens += pass.tokens();
  }
  const auto t = static_cast<double>(step + 1);
  const at::Tensor hyper = at::tensor({static_cast<float>(learning_rate),
                                       static_cast<float>(1.0 - std::pow(settings_.adamw.beta1, t)),
                                       static_cast<float>(1.0 - std::pow(settings_.adamw.beta2, t))});
  hyper_.copy_(cuda_ ? hyper.pin_memory() : hyper, /*non_blocking=*/true);
  step_.fill_(step);
  pending.outcome.data_seconds = steady_seconds() - begin;

  pending.clock.mark(0);
  buffers_.gradient.zero_();
  nll_sum_.zero_();
  for (const data::PassBatch& pass : passes) runner_.run(pass, step_, buffers_.gradient, nll_sum_);
  kernels::fill_tail(buffers_.gradient, nll_sum_, static_cast<double>(targets), stop,
                     static_cast<double>(pending.outcome.own_tokens), communicator_.rank(), buffers_.tail);
  send_stats();
  pending.clock.mark(1);
  reduce(current_stream(cuda_));
  pending.clock.mark(2);
  kernels::finish_reduction(buffers_.gradient, buffers_.tail, settings_.max_grad_norm, scratch_, outcome_);
  if (adamw_8bit_) {
    adamw_8bit_->step(settings_.adamw, hyper_, outcome_, buffers_.gradient, buffers_.master);
  } else {
    kernels::adamw_step(settings_.adamw, hyper_, outcome_, buffers_.gradient, buffers_.master,
                        buffers_.exp_avg, buffers_.exp_avg_sq);
  }
  scatter_(buffers_.master);
  pending.readback.narrow(0, 0, 8).copy_(outcome_, /*non_blocking=*/true);
  pending.readback.narrow(0, 8, readback_length - 8)
      .copy_(buffers_.rank_stats.flatten(), /*non_blocking=*/true);
  pending.clock.mark(3);
  pending_.push_back(std::move(pending));
}

std::optional<StepOutcome> StepEngine::collect(std::size_t lag) {
  if (pending_.size() <= lag) return std::nullopt;
  Pending pending = std::move(pending_.front());
  pending_.pop_front();
  pending.clock.wait();
  StepOutcome outcome = pending.outcome;
  const float* values = pending.readback.data_ptr<float>();
  outcome.loss = values[kernels::outcome_loss];
  outcome.grad_norm = values[kernels::outcome_grad_norm];
  outcome.target_tokens = values[kernels::outcome_targets];
  outcome.tokens = values[kernels::outcome_tokens];
  outcome.stop = values[kernels::outcome_stop];
  outcome.bad = values[kernels::outcome_bad] != 0.0F;
  outcome.bad_rank = static_cast<std::int64_t>(values[kernels::outcome_bad_rank]);
  outcome.compute_seconds = pending.clock.seconds(0, 1) + pending.clock.seconds(2, 3);
  outcome.communication_seconds = pending.clock.seconds(1, 2);
  outcome.finished_at = steady_seconds();
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    const float* row = values + 8 + rank * model::kRankStats;
    if (row[0] <= 0) continue;
    outcome.rank_stats.push_back({static_cast<std::int64_t>(row[0]), rank, static_cast<std::int64_t>(row[1]),
                                  row[2], row[3], static_cast<std::int64_t>(row[4]) * kMebibyte});
  }
  unsent_stats_.push_back({outcome.step + 1, communicator_.rank(), outcome.own_tokens,
                           outcome.compute_seconds, outcome.communication_seconds,
                           peak_device_bytes(decoder_.options().device)});
  return outcome;
}

}  // namespace ranktune::train
