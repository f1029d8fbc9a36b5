// Which sample comes when: a pure function of (seed, epoch), whatever the number of ranks or restarts; and
// which samples form step s. A step has G slots (global batch); the last step of an epoch may leave slots
// empty.
//
// A slot holds one sample. With packing it holds a pack: samples whose lengths add up to at most a given
// length. The packs of an epoch are made from all of its samples before they are dealt to steps and ranks:
// each sample, in the epoch's order, goes to the first pack that has room for it, or else opens a new one
// (first-fit). With shuffling the packs are then permuted, since later ones hold fewer short samples. Their
// number is another one in each epoch, and so is that of the steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_store.hpp"

namespace ranktune::data {

class SampleOrder {
 public:
  // `samples` > 0, `global_batch` > 0. Without `shuffle`: file order in every epoch.
  SampleOrder(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle);
  // The samples of the store, packed where `pack_length` > 0, which no sample exceeds.
  SampleOrder(const TokenStore& store, std::int64_t global_batch, std::uint64_t seed, bool shuffle,
              std::int64_t pack_length);

  // What the slots of an epoch hold: slot i the samples [starts[i], starts[i + 1]) of `samples`.
  struct Epoch {
    std::vector<std::int64_t> samples;
    std::vector<std::int64_t> starts;  // [slots + 1]
    std::int64_t slots() const { return static_cast<std::int64_t>(starts.size()) - 1; }
  };
  // Samples of one epoch in the order of its slots. Permutations are Fisher-Yates with Philox keyed by (seed,
  // shuffle, epoch).
  Epoch packs(std::int64_t epoch) const;
  std::vector<std::int64_t> epoch(std::int64_t epoch) const { return packs(epoch).samples; }

  std::int64_t steps_in_epoch(std::int64_t epoch) const;
  std::int64_t epoch_of_step(std::int64_t step) const;  // steps count from 0
  // Steps of so many epochs from the first on, rounded up.
  std::int64_t steps_of_epochs(double epochs) const;
  // Rank r's contiguous share of a step: the samples of its slots [r * G / R, (r + 1) * G / R), in order;
  // empty slots have none.
  std::vector<std::int64_t> samples(std::int64_t step, std::int64_t rank, std::int64_t world_size) const;
  // Samples in steps [0, step), counting epochs on.
  std::int64_t samples_before(std::int64_t step) const;

 private:
  const Epoch& cached(std::int64_t epoch) const;
  std::int64_t first_step(std::int64_t epoch) const;

  std::int64_t samples_;
  std::int64_t global_batch_;
  std::uint64_t seed_;
  bool shuffle_;
  std::int64_t pack_length_ = 0;
  std::vector<std::int64_t> lengths_;  // of the samples; with packing only
  mutable std::int64_t cached_epoch_ = -1;
  mutable Epoch cached_;
  mutable std::vector<std::int64_t> first_steps_{0};  // of the epochs known so far; with packing only
};

}  // namespace ranktune::data
