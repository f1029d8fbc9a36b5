// Bound: bytes, N fp32 read, each.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"
#include "kernels/reduction_outcome.hpp"
#include "kernels/step_layout.hpp"

namespace ranktune::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 1024;  // partial sums of the norm

__global__ void set_tail(const double* nll_sum, TailValues values, float* tail, std::int64_t slots) {
  const auto nll = static_cast<float>(*nll_sum);
  for (std::int64_t i = threadIdx.x; i < slots; i += blockDim.x) {
    float value = 0;
    if (i == tail_nll) value = nll;
    if (i == tail_targets) value = values.targets;
    if (i == tail_stop) value = values.stop;
    if (i == tail_tokens) value = values.tokens;
    if (i == tail_nonfinite + values.rank) value = isfinite(nll) ? 0.0F : 1.0F;
    tail[i] = value;
  }
}

// Whoever finds an element that is not finite writes the same 1.
__global__ void find_nonfinite(const float* x, std::int64_t count, float* slot) {
  bool bad = false;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    bad |= !isfinite(x[i]);
  }
  if (bad) *slot = 1.0F;
}

// Which elements a thread adds depends on the count alone.
__global__ void partial_squares(const float* x, std::int64_t count, double* partial) {
  __shared__ double shared[32];
  double sum = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const auto value = static_cast<double>(x[i]);
    sum += value * value;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void write_outcome(const double* partial, std::int64_t parts, const float* tail,
                              std::int64_t slots, double max_norm, float* outcome) {
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < parts; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) set_outcome(sum, tail, slots, max_norm, outcome);
}

}  // namespace

void fill_tail(const float* gradient, std::int64_t count, const double* nll_sum, const TailValues& values,
               float* tail, std::int64_t slots, cudaStream_t stream) {
  set_tail<<<1, 32, 0, stream>>>(nll_sum, values, tail, slots);
  RT_CUDA_CHECK(cudaGetLastError());
  if (count == 0) return;
  find_nonfinite<<<blocks_for(count, 4 * kThreads, 2048), kThreads, 0, stream>>>(
      gradient, count, tail + tail_nonfinite + values.rank);
  RT_CUDA_CHECK(cudaGetLastError());
}

void finish_reduction(const float* gradient, std::int64_t count, const float* tail, std::int64_t slots,
                      double max_norm, double* scratch, float* outcome, cudaStream_t stream) {
  const unsigned blocks = blocks_for(count, 4 * kThreads, kMostBlocks);
  partial_squares<<<blocks, kThreads, 0, stream>>>(gradient, count, scratch);
  RT_CUDA_CHECK(cudaGetLastError());
  write_outcome<<<1, 1024, 0, stream>>>(scratch, blocks, tail, slots, max_norm, outcome);
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
