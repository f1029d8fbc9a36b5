// Plain types that host code and CUDA code share.
#pragma once

#include <cstdint>

namespace ranktune::kernels {

// The two storage types of activations and weights.
enum class Type : int { f32 = 0, bf16 = 1 };

// A matrix whose rows lie `stride` elements apart.
struct Rows {
  std::int64_t count = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
};

// The same with its memory, for CUDA.
struct DeviceRows {
  void* data = nullptr;
  std::int64_t count = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
};

}  // namespace ranktune::kernels
