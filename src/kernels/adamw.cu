// Bound: bytes, 4 fp32 read and 3 written per parameter.
#include "kernels/adamw_update.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"
#include "kernels/step_layout.hpp"

namespace ranktune::kernels::cuda {
namespace {

template <int N>
__global__ void adamw_update_all(AdamW settings, const float* hyper, const float* outcome,
                                 const float* gradient, float* master, float* exp_avg, float* exp_avg_sq,
                                 std::int64_t count) {
  if (outcome[outcome_bad] != 0.0F) return;
  __shared__ float constants[sizeof(AdamWFactors) / sizeof(float)];
  auto* factors = reinterpret_cast<AdamWFactors*>(constants);
  if (threadIdx.x == 0) {
    *factors = AdamWFactors(settings.beta1, settings.beta2, settings.eps, settings.weight_decay, hyper,
                            outcome[outcome_multiplier]);
  }
  __syncthreads();
  const AdamWFactors mine = *factors;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * N;
  std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (; i + N <= count; i += step) {
    const auto g = Pack<float, N>::load(gradient + i);
    auto w = Pack<float, N>::load(master + i);
    auto m = Pack<float, N>::load(exp_avg + i);
    auto v = Pack<float, N>::load(exp_avg_sq + i);
#pragma unroll
    for (int j = 0; j < N; ++j) mine.update(g.values[j], w.values[j], m.values[j], v.values[j]);
    w.store(master + i);
    m.store(exp_avg + i);
    v.store(exp_avg_sq + i);
  }
  for (; i < count; ++i)
    mine.update(gradient[i], master[i], exp_avg[i], exp_avg_sq[i]);  // of one thread, at the end
}

}  // namespace

void adamw_step(const AdamW& settings, const float* hyper, const float* outcome, const float* gradient,
                float* master, float* exp_avg, float* exp_avg_sq, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  const bool wide =
      aligned(gradient, 16) && aligned(master, 16) && aligned(exp_avg, 16) && aligned(exp_avg_sq, 16);
  const unsigned blocks = blocks_for(count, 2 * 4 * 256, 4096);
  if (wide) {
    adamw_update_all<4>
        <<<blocks, 256, 0, stream>>>(settings, hyper, outcome, gradient, master, exp_avg, exp_avg_sq, count);
  } else {
    adamw_update_all<1>
        <<<blocks, 256, 0, stream>>>(settings, hyper, outcome, gradient, master, exp_avg, exp_avg_sq, count);
  }
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
