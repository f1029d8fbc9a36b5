// The dropout mask, the same on host and device.
#pragma once

#include <cstdint>

#include "base/philox.hpp"

namespace ranktune::kernels {

// Philox with a key drawn from (seed, dropout, stream) and the counter (channel / 4, position, sample, step),
// of which the low 32 bits count; each of the four words decides one channel.
struct DropoutMask {
  std::uint32_t key0 = 0;
  std::uint32_t key1 = 0;
  std::uint32_t threshold = 0;  // dropped where the word is below p * 2^32
  float scale = 1;              // 1 / (1 - p)

  DropoutMask(double p, std::uint64_t seed, std::uint32_t stream);

  static RT_HOST_DEVICE constexpr Philox4 place(std::int64_t step, std::int64_t sample,
                                                std::int32_t position) {
    return Philox4{0, static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(sample),
                   static_cast<std::uint32_t>(step)};
  }
  RT_HOST_DEVICE constexpr Philox4 draw(Philox4 place, std::uint32_t channel_block) const {
    place.x = channel_block;
    return philox4x32(place, key0, key1);
  }
  RT_HOST_DEVICE constexpr bool keeps(std::uint32_t bits) const { return bits >= threshold; }
};

}  // namespace ranktune::kernels
