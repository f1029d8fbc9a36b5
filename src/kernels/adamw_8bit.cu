// Bound: bytes, 2 fp32 and 2 bytes read, 1 fp32 and 2 bytes written per parameter.
#include "kernels/adamw_update.hpp"
#include "kernels/device.cuh"
#include "kernels/dynamic_map.hpp"
#include "kernels/quantized_launch.hpp"
#include "kernels/step_layout.hpp"

namespace ranktune::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kPerLane = kDynamicBlock / 32;

__device__ __forceinline__ float warp_max(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, offset));
  return x;
}

// A warp takes a block of 256 elements, whose absmax it finds with shuffles.
__global__ void adamw_8bit_blocks(AdamW settings, const float* hyper, const float* outcome,
                                  const float* gradient, float* master, Moments8bit moments) {
  if (outcome[outcome_bad] != 0.0F) return;
  __shared__ float maps[2][kDynamicCodes];
  __shared__ float constants[sizeof(AdamWFactors) / sizeof(float)];
  auto* factors = reinterpret_cast<AdamWFactors*>(constants);
  if (threadIdx.x == 0) {
    *factors = AdamWFactors(settings.beta1, settings.beta2, settings.eps, settings.weight_decay, hyper,
                            outcome[outcome_multiplier]);
  }
  for (int i = static_cast<int>(threadIdx.x); i < kDynamicCodes; i += 32 * kWarps) {
    maps[0][i] = moments.maps[i];
    maps[1][i] = moments.maps[kDynamicCodes + i];
  }
  __syncthreads();
  const AdamWFactors mine = *factors;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       block < moments.blocks; block += step) {
    const std::int64_t offset = moments.table[block * 3];
    const std::int64_t count = moments.table[block * 3 + 1];
    const std::int64_t small = moments.table[block * 3 + 2];
    const bool fp32 = small >= 0;
    const float scale_m = moments.exp_avg_absmax[block];
    const float scale_v = moments.exp_avg_sq_absmax[block];
    float m[kPerLane];
    float v[kPerLane];
    float largest_m = 0;
    float largest_v = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int i = lane + 32 * j;
      m[j] = 0;
      v[j] = 0;
      if (i >= count) continue;
      const std::int64_t at = offset + i;
      m[j] = fp32 ? moments.small_exp_avg[small + i] : maps[0][moments.exp_avg[at]] * scale_m;
      v[j] = fp32 ? moments.small_exp_avg_sq[small + i] : maps[1][moments.exp_avg_sq[at]] * scale_v;
      float w = master[at];
      mine.update(gradient[at], w, m[j], v[j]);
      master[at] = w;
      largest_m = fmaxf(largest_m, fabsf(m[j]));
      largest_v = fmaxf(largest_v, v[j]);
    }
    if (!fp32) {
      largest_m = warp_max(largest_m);
      largest_v = warp_max(largest_v);
      if (lane == 0) {
        moments.exp_avg_absmax[block] = largest_m;
        moments.exp_avg_sq_absmax[block] = largest_v;
      }
    }
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int i = lane + 32 * j;
      if (i >= count) continue;
      if (fp32) {
        moments.small_exp_avg[small + i] = m[j];
        moments.small_exp_avg_sq[small + i] = v[j];
      } else {
        moments.exp_avg[offset + i] = moment_code(maps[0], m[j], largest_m);
        moments.exp_avg_sq[offset + i] = moment_code(maps[1], v[j], largest_v);
      }
    }
    __syncwarp();
  }
}

}  // namespace

void adamw_8bit_step(const AdamW& settings, const float* hyper, const float* outcome, const float* gradient,
                     float* master, const Moments8bit& moments, cudaStream_t stream) {
  if (moments.blocks == 0) return;
  adamw_8bit_blocks<<<blocks_for(moments.blocks, kWarps, 4096), 32 * kWarps, 0, stream>>>(
      settings, hyper, outcome, gradient, master, moments);
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
