// The dynamic 8-bit map (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"): 256 values in
// [-1, 1] whose spacing grows with their size. Blockwise quantised values are map[code] * absmax of the
// block.
#pragma once

#include <cstdint>

#include "base/philox.hpp"  // RT_HOST_DEVICE

namespace ranktune::kernels {

inline constexpr std::int64_t kDynamicCodes = 256;
inline constexpr std::int64_t kDynamicBlock = 256;  // values that share an absmax

// The code whose value is nearest to x, the lower one where two are; map [256] ascending.
RT_HOST_DEVICE inline std::uint8_t nearest_code(const float* map, float x) {
  int low = 0;  // the first code whose value is not below x lies in [low, high]
  int high = static_cast<int>(kDynamicCodes);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (map[middle] < x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0) return 0;
  if (low == static_cast<int>(kDynamicCodes)) return 255;
  return static_cast<std::uint8_t>(map[low] - x < x - map[low - 1] ? low : low - 1);
}

// The same, of a moment: what is not zero never changes its sign, as in bitsandbytes' optimizers.
RT_HOST_DEVICE inline std::uint8_t moment_code(const float* map, float x, float absmax) {
  const float part = absmax > 0 ? x / absmax : 0.0F;
  const std::uint8_t code = nearest_code(map, part);
  if (part > 0 && map[code] < 0) return static_cast<std::uint8_t>(code + 1);
  if (part < 0 && map[code] >= 0) return static_cast<std::uint8_t>(code - 1);
  return code;
}

// fp32 [256] on the host, ascending, for values of both signs or for values that are never negative. The
// bits of bitsandbytes' create_dynamic_map, but for the least value of the signed one, -1 instead of -0.993,
// to which bitsandbytes' CPU code widens it too.
const float* dynamic_map(bool both_signs);

}  // namespace ranktune::kernels
