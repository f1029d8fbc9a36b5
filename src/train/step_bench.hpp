// Timing of whole optimizer steps on given work: warm-up, then repeated runs of the same steps, synchronised
// at both ends, real tokens only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/communicator.hpp"
#include "data/token_store.hpp"
#include "model/decoder.hpp"
#include "train/kernel_timeline.hpp"
#include "train/memory_plan.hpp"
#include "train/step_engine.hpp"

namespace ranktune::train {

// What to run: step i of a run takes the samples steps[i] of this rank.
struct BenchWork {
  std::string name;
  data::TokenStore store;
  std::vector<std::vector<std::int64_t>> steps;
};

// `steps` equal steps of `samples` sequences of `length` random tokens each.
BenchWork fixed_work(std::int64_t samples, std::int64_t length, std::int64_t steps, std::int64_t vocabulary);

struct BenchSettings {
  int runs = 5;  // measured; the median is reported
  bool timeline = false;
  Recompute recompute = Recompute::automatic;
  std::int64_t max_tokens_per_pass = 0;
  OptimizerSettings optimizer;
  std::int64_t memory_limit = 0;  // bytes that the program may hold on its device; 0: what is free
};

struct BenchFigures {
  std::string name;
  std::int64_t steps = 0;           // in a run
  double step_seconds = 0;          // median over the runs of a run's mean step
  double spread = 0;                // (slowest - fastest run) / median
  double tokens = 0;                // of this rank in the mean step
  double host_share = 0;            // of a run in which the host prepared and launched
  double first_step_seconds = 0;    // with nothing warm
  std::int64_t peak_bytes = 0;      // held by the program at most
  std::int64_t reserved_bytes = 0;  // taken from the driver by the allocator
  MemoryPlan plan;
  KernelTimeline timeline;  // of one more run, where asked for
};

// Collective. Plans memory for the work and runs it. The decoder's weights are there; the adapter's B is
// random, so that no product is with zeros.
BenchFigures bench_steps(const BenchWork& work, model::Decoder& decoder, cluster::Communicator& communicator,
                         const BenchSettings& settings);

}  // namespace ranktune::train
