// One optimizer step: passes -> flat gradient -> one all-reduce -> clip -> AdamW -> the copies the GEMMs
// read.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cluster/communicator.hpp"
#include "cluster/watchdog.hpp"
#include "data/batch.hpp"
#include "kernels/adamw_8bit.hpp"
#include "kernels/ops.hpp"
#include "model/decoder.hpp"
#include "train/pass_runner.hpp"

namespace ranktune::train {

struct OptimizerSettings {
  kernels::AdamW adamw;
  bool eight_bit = false;      // moments in 8 bits
  double max_grad_norm = 1.0;  // <= 0: no clipping
};

// Where one rank's time and memory went in one step.
struct RankStats {
  std::int64_t step = 0;  // from 1; 0: none
  std::int64_t rank = 0;
  std::int64_t tokens = 0;
  double compute_seconds = 0;
  double waiting_seconds = 0;  // in the all-reduce, the slower ranks waited for
  std::int64_t memory_bytes = 0;
};

// What one step came to. Loss, norm, counts and flags are those of all ranks; the seconds are this rank's.
struct StepOutcome {
  std::int64_t step = 0;  // from 0
  double loss = 0;        // nats per target token
  double grad_norm = 0;   // before clipping
  double target_tokens = 0;
  double tokens = 0;
  double stop = 0;  // > 0: some rank asked to stop (the sum of the ranks' requests)
  bool bad = false;
  std::int64_t bad_rank = -1;  // whose gradient was not finite, where one alone is to blame
  std::int64_t own_tokens = 0;
  double data_seconds = 0;
  double compute_seconds = 0;
  double communication_seconds = 0;
  double finished_at = 0;             // steady clock, seconds
  std::vector<RankStats> rank_stats;  // of all ranks for an earlier step; they travel with the all-reduce
};

// Marks in time on the device's own time line: CUDA events on the GPU, the steady clock on the CPU.
class StepClock {
 public:
  explicit StepClock(bool cuda);
  ~StepClock();
  StepClock(StepClock&&) noexcept;
  StepClock& operator=(StepClock&&) noexcept;
  void mark(std::size_t which);  // 0 start, 1 gradients done, 2 all-reduced, 3 finished
  void wait();                   // until mark 3 has happened
  double seconds(std::size_t from, std::size_t to) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class StepEngine {
 public:
  StepEngine(model::Decoder& decoder, const OptimizerSettings& settings, cluster::Communicator& communicator,
             cluster::Watchdog* watchdog);

  model::FlatBuffers& buffers() { return buffers_; }
  // What a checkpoint holds, on the device, by name: the parameters and the optimizer's state.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  // Reserves the decoder's buffers for passes of at most `tokens` tokens.
  void reserve(std::int64_t tokens, std::int64_t recomputed);
  // To be called after the master was written from outside (initialisation, resume).
  void publish_master();

  // Enqueues step number `step` (from 0) over this rank's passes; `stop` travels with the all-reduce.
  void launch(std::int64_t step, double learning_rate, std::span<const data::PassBatch> passes, double stop);
  // The oldest launched step that was not yet collected, after waiting for it. At most `lag` steps stay
  // uncollected.
  std::optional<StepOutcome> collect(std::size_t lag);
  // This rank's statistics that no all-reduce has carried yet, handed over to be gathered otherwise.
  std::vector<RankStats> take_unsent_stats();

 private:
  struct Pending {
    StepOutcome outcome;
    at::Tensor readback;  // fp32 [8 + rank statistics], pinned on the GPU's host
    StepClock clock;
  };
  void reduce(void* stream);
  void send_stats();

  model::Decoder& decoder_;
  OptimizerSettings settings_;
  cluster::Communicator& communicator_;
  cluster::Watchdog* watchdog_;
  bool cuda_;
  model::FlatBuffers buffers_;
  std::optional<kernels::AdamW8bit> adamw_8bit_;
  kernels::SegmentScatter scatter_;
  PassRunner runner_;
  at::Tensor hyper_, outcome_, scratch_, nll_sum_, step_;
  std::deque<Pending> pending_;
  std::deque<RankStats> unsent_stats_;
};

}  // namespace ranktune::train
