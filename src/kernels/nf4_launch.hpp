// CUDA entry point of the NF4 decoder, free of LibTorch, as in cuda_launch.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.hpp"

namespace ranktune::kernels::cuda {

struct Nf4Rows {
  const std::uint8_t* packed = nullptr;  // null: these rows are left as they are
  const std::uint8_t* absmax = nullptr;
  const float* nested_absmax = nullptr;
  const float* absmax_map = nullptr;
  const float* offset = nullptr;
  std::int64_t first_row = 0;
  int rounded_to = 0;  // 0: fp32, 1: bf16, 2: fp16
};
struct Nf4Group {
  Nf4Rows parts[3];
  int count = 0;
};
// behind.data null: out has no further columns.
void decode_nf4(Type type, const Nf4Group& group, std::int64_t columns, const DeviceRows& behind,
                const DeviceRows& out, cudaStream_t stream);

}  // namespace ranktune::kernels::cuda
