#include "data/sample_order.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
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

// Fisher-Yates over [0, count), from the draws of one stream.
std::vector<std::int64_t> permutation(std::int64_t count, std::uint64_t seed, std::uint32_t stream) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t last = order.size() - 1; last > 0; --last) {
    std::swap(order[last], order[uniform_below(last + 1, seed, stream, last)]);
  }
  return order;
}

// The room that is left in each of a row of packs, in a tree whose nodes know the most of all below them.
class Rooms {
 public:
  Rooms(std::size_t packs, std::int64_t length) : leaves_(std::bit_ceil(packs)), room_(2 * leaves_, length) {}

  // Takes `length` from the first pack that has it; returns which.
  std::size_t take(std::int64_t length) {
    std::size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= length ? 2 * node : 2 * node + 1;
    room_[node] -= length;
    const std::size_t pack = node - leaves_;
    while ((node /= 2) > 0) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return pack;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> room_;
};

// Which samples each pack holds, first-fit in the order given. Packs that were never opened are none.
std::vector<std::vector<std::int64_t>> first_fit(std::span<const std::int64_t> order,
                                                 std::span<const std::int64_t> lengths,
                                                 std::int64_t pack_length) {
  std::vector<std::vector<std::int64_t>> packs;
  Rooms rooms(order.size(), pack_length);
  for (const std::int64_t sample : order) {
    const std::size_t pack = rooms.take(lengths[static_cast<std::size_t>(sample)]);
    if (pack == packs.size()) packs.emplace_back();
    packs[pack].push_back(sample);
  }
  return packs;
}

// Streams of the permutations of packs, beside those of the epochs' samples.
constexpr std::uint32_t kPackStreams = std::uint32_t{1} << 31U;

}  // namespace

SampleOrder::SampleOrder(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed, bool shuffle)
    : samples_(samples), global_batch_(global_batch), seed_(seed), shuffle_(shuffle) {
  RT_CHECK(samples > 0 && samples < (std::int64_t{1} << 48), "a sample order needs samples");
  RT_CHECK(global_batch > 0, "a global batch has at least one slot");
}

SampleOrder::SampleOrder(const TokenStore& store, std::int64_t global_batch, std::uint64_t seed, bool shuffle,
                         std::int64_t pack_length)
    : SampleOrder(store.samples(), global_batch, seed, shuffle) {
  pack_length_ = pack_length;
  if (pack_length == 0) return;
  for (std::int64_t i = 0; i < samples_; ++i) {
    lengths_.push_back(static_cast<std::int64_t>(store.sample(i).size()));
    RT_CHECK(lengths_.back() <= pack_length, "a sample is longer than a pack");
  }
}

SampleOrder::Epoch SampleOrder::packs(std::int64_t epoch) const {
  RT_CHECK(epoch >= 0 && epoch <= std::numeric_limits<std::uint32_t>::max(), "epoch out of range");
  const auto stream = static_cast<std::uint32_t>(epoch);
  Epoch result;
  result.samples.resize(static_cast<std::size_t>(samples_));
  std::iota(result.samples.begin(), result.samples.end(), std::int64_t{0});
  if (shuffle_) result.samples = permutation(samples_, seed_, stream);
  if (pack_length_ == 0) {
    result.starts.resize(static_cast<std::size_t>(samples_ + 1));
    std::iota(result.starts.begin(), result.starts.end(), std::int64_t{0});
    return result;
  }
  RT_CHECK(stream < kPackStreams, "epoch out of range");
  const auto packs = first_fit(result.samples, lengths_, pack_length_);
  const auto count = static_cast<std::int64_t>(packs.size());
  std::vector<std::int64_t> order(packs.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (shuffle_) order = permutation(count, seed_, kPackStreams + stream);
  result.samples.clear();
  result.starts = {0};
  for (const std::int64_t pack : order) {
    const auto& samples = packs[static_cast<std::size_t>(pack)];
    result.samples.insert(result.samples.end(), samples.begin(), samples.end());
    result.starts.push_back(static_cast<std::int64_t>(result.samples.size()));
  }
  return result;
}

const SampleOrder::Epoch& SampleOrder::cached(std::int64_t epoch) const {
  if (epoch != cached_epoch_) {
    cached_ = packs(epoch);
    cached_epoch_ = epoch;
  }
  return cached_;
}

std::int64_t SampleOrder::steps_in_epoch(std::int64_t epoch) const {
  const std::int64_t slots = pack_length_ == 0 ? samples_ : cached(epoch).slots();
  return (slots + global_batch_ - 1) / global_batch_;
}

std::int64_t SampleOrder::first_step(std::int64_t epoch) const {
  if (pack_length_ == 0) return epoch * steps_in_epoch(0);
  while (static_cast<std::int64_t>(first_steps_.size()) <= epoch) {
    const auto last = static_cast<std::int64_t>(first_steps_.size()) - 1;
    first_steps_.push_back(first_steps_.back() + steps_in_epoch(last));
  }
  return first_steps_[static_cast<std::size_t>(epoch)];
}

std::int64_t SampleOrder::epoch_of_step(std::int64_t step) const {
  RT_CHECK(step >= 0, "steps count from 0");
  if (pack_length_ == 0) return step / steps_in_epoch(0);
  while (first_steps_.back() <= step) first_step(static_cast<std::int64_t>(first_steps_.size()));
  return std::upper_bound(first_steps_.begin(), first_steps_.end(), step) - first_steps_.begin() - 1;
}

std::int64_t SampleOrder::steps_of_epochs(double epochs) const {
  const auto whole = static_cast<std::int64_t>(epochs);
  if (pack_length_ == 0) {
    return static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(steps_in_epoch(0))));
  }
  const double rest = epochs - static_cast<double>(whole);
  const std::int64_t more =
      rest > 0 ? static_cast<std::int64_t>(std::ceil(rest * static_cast<double>(steps_in_epoch(whole)))) : 0;
  return first_step(whole) + more;
}

std::vector<std::int64_t> SampleOrder::samples(std::int64_t step, std::int64_t rank,
                                               std::int64_t world_size) const {
  RT_CHECK(world_size > 0 && rank >= 0 && rank < world_size, "rank outside the world");
  const std::int64_t epoch = epoch_of_step(step);
  const std::int64_t first = (step - first_step(epoch)) * global_batch_;
  const Epoch& all = cached(epoch);
  const auto start_of_slot = [&](std::int64_t slot) {
    return all.samples.begin() + all.starts[static_cast<std::size_t>(std::min(first + slot, all.slots()))];
  };
  return {start_of_slot(rank * global_batch_ / world_size),
          start_of_slot((rank + 1) * global_batch_ / world_size)};
}

std::int64_t SampleOrder::samples_before(std::int64_t step) const {
  const std::int64_t epoch = epoch_of_step(step);
  const std::int64_t slot = (step - first_step(epoch)) * global_batch_;
  if (slot == 0 || pack_length_ == 0) return epoch * samples_ + slot;
  return epoch * samples_ + cached(epoch).starts[static_cast<std::size_t>(slot)];
}

}  // namespace ranktune::data
