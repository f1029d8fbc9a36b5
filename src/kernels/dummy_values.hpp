// The values of dummy_normal, the same on host and device.
#pragma once

#include <cstdint>

#include "base/philox.hpp"

namespace ranktune::kernels {

// The sum of four uniform bytes has mean 510 and variance 4 * (256^2 - 1) / 12 = 21845 (Irwin-Hall).
inline constexpr float kBytesDeviation = 147.80054F;

RT_HOST_DEVICE constexpr float centred_bytes(std::uint32_t word) {
  const auto sum =
      static_cast<int>((word & 0xFFU) + ((word >> 8) & 0xFFU) + ((word >> 16) & 0xFFU) + (word >> 24));
  return static_cast<float>(sum - 510);
}

}  // namespace ranktune::kernels
