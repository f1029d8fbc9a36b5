// CUDA entry points of the quantised optimizer state, free of LibTorch, as in cuda_launch.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ranktune::kernels {
struct AdamW;
}  // namespace ranktune::kernels

namespace ranktune::kernels::cuda {

struct Moments8bit {
  std::uint8_t* exp_avg = nullptr;
  std::uint8_t* exp_avg_sq = nullptr;
  float* exp_avg_absmax = nullptr;
  float* exp_avg_sq_absmax = nullptr;
  float* small_exp_avg = nullptr;
  float* small_exp_avg_sq = nullptr;
  const float* maps = nullptr;          // [2, 256]
  const std::int64_t* table = nullptr;  // [blocks, 3]
  std::int64_t blocks = 0;
};
void adamw_8bit_step(const AdamW& settings, const float* hyper, const float* outcome, const float* gradient,
                     float* master, const Moments8bit& moments, cudaStream_t stream);

}  // namespace ranktune::kernels::cuda
