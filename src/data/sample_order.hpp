// Which sample comes when: a pure function of (seed, epoch), whatever the number of ranks or restarts; and
// which samples form step s. A step has G slots (global batch); the last step of an epoch may leave slots
// empty.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ranktune::data {

class SampleOrder {
 public:
  // `samples` > 0, `global_batch` > 0. Without `shuffle`: file order in every epoch.
  SampleOrder(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle);

  std::int64_t steps_per_epoch() const;
  std::int64_t epoch_of_step(std::int64_t step) const;  // steps count from 0
  // The permutation of one epoch: Fisher-Yates with Philox keyed by (seed, shuffle, epoch).
  std::vector<std::int64_t> epoch(std::int64_t epoch) const;
  // Sample of each slot of a step, -1 where the last window of an epoch leaves the slot empty:
  // [global_batch].
  std::vector<std::int64_t> slots(std::int64_t step) const;
  // Samples in steps [0, step), counting epochs on.
  std::int64_t samples_before(std::int64_t step) const;

 private:
  std::int64_t samples_;
  std::int64_t global_batch_;
  std::uint64_t seed_;
  bool shuffle_;
  mutable std::int64_t cached_epoch_ = -1;
  mutable std::vector<std::int64_t> cached_;
};

// Rank r's contiguous share of the slots: [r * G / R, (r + 1) * G / R).
std::span<const std::int64_t> share_of_rank(std::span<const std::int64_t> slots, std::int64_t rank,
                                            std::int64_t world_size);

}  // namespace ranktune::data
