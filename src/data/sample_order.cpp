#include "data/sample_order.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/philox.hpp"

namespace ranktune::data {
namespace {

// Uniform in [0, bound) from draw `index` of the epoch's stream: multiply-shift with rejection (Lemire, "Fast
// random integer generation in an interval", ACM TOMACS 2019), in 64 bits. A draw is rejected when the low
// half of the product falls below 2^64 mod bound, which makes every value equally likely. One draw holds two
// 64-bit words; both rejected (less than once in 2^64 for any dataset that fits in memory), the next draws
// are taken from the index's own upper range, so that other indices keep their draws.
std::uint64_t uniform_below(std::uint64_t bound, std::uint64_t seed, std::uint32_t epoch,
                            std::uint64_t index) {
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound
  for (std::uint64_t attempt = 0;; ++attempt) {
    const Philox4 bits = random_bits(seed, RandomPurpose::shuffle, epoch, index | (attempt << 48U));
    for (const std::uint64_t word :
         {(std::uint64_t{bits.y} << 32U) | bits.x, (std::uint64_t{bits.w} << 32U) | bits.z}) {
      const Wide product = Wide{word} * bound;
      if (static_cast<std::uint64_t>(product) >= threshold) return static_cast<std::uint64_t>(product >> 64U);
    }
  }
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle)
    : samples_(samples), global_batch_(global_batch), seed_(seed), shuffle_(shuffle) {
  RT_CHECK(samples > 0 && samples < (std::int64_t{1} << 48), "a sample order needs samples");
  RT_CHECK(global_batch > 0, "a global batch has at least one slot");
}

std::int64_t SampleOrder::steps_per_epoch() const {
  return samples_ / global_batch_ + (samples_ % global_batch_ != 0 ? 1 : 0);
}

std::int64_t SampleOrder::epoch_of_step(std::int64_t step) const {
  RT_CHECK(step >= 0, "steps count from 0");
  return step / steps_per_epoch();
}

std::vector<std::int64_t> SampleOrder::epoch(std::int64_t epoch) const {
  RT_CHECK(epoch >= 0 && epoch <= std::numeric_limits<std::uint32_t>::max(), "epoch out of range");
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples_));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle_) return order;
  for (std::size_t last = order.size() - 1; last > 0; --last) {
    const auto pick = uniform_below(last + 1, seed_, static_cast<std::uint32_t>(epoch), last);
    std::swap(order[last], order[pick]);
  }
  return order;
}

std::vector<std::int64_t> SampleOrder::slots(std::int64_t step) const {
  const std::int64_t epoch_index = epoch_of_step(step);
  if (epoch_index != cached_epoch_) {
    cached_ = epoch(epoch_index);
    cached_epoch_ = epoch_index;
  }
  const std::int64_t first = (step % steps_per_epoch()) * global_batch_;
  const std::int64_t filled = std::min(global_batch_, samples_ - first);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(global_batch_), -1);
  std::copy_n(cached_.begin() + first, filled, slots.begin());
  return slots;
}

std::int64_t SampleOrder::samples_before(std::int64_t step) const {
  return epoch_of_step(step) * samples_ + (step % steps_per_epoch()) * global_batch_;
}

std::span<const std::int64_t> share_of_rank(std::span<const std::int64_t> slots, std::int64_t rank,
                                            std::int64_t world_size) {
  RT_CHECK(world_size > 0 && rank >= 0 && rank < world_size, "rank outside the world");
  const auto total = static_cast<std::int64_t>(slots.size());
  const std::int64_t begin = rank * total / world_size;
  const std::int64_t end = (rank + 1) * total / world_size;
  return slots.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace ranktune::data
