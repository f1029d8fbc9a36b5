// One block a row: a pass for maximum and sum (rescaled as the maximum grows, Milakov and Gimelshein 2018),
// and one that turns logits into their gradient. Bound: bytes, N * V elements read twice (the second time
// mostly from L2) and written once.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"

namespace ranktune::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr float kLog2E = 1.4426950408889634F;

__device__ __forceinline__ float exp_of(float x) {
  return exp2f(x * kLog2E);
}

// The maximum of some values and the sum of their exponentials relative to it.
struct Softmax {
  float highest = -INFINITY;
  float sum = 0;

  // -infinity adds nothing, NaN and infinity make the sum NaN.
  template <class T, int N>
  __device__ __forceinline__ void add(const Pack<T, N>& pack) {
    float most = highest;
#pragma unroll
    for (int j = 0; j < N; ++j) most = fmaxf(most, to_float(pack.values[j]));
    if (most > highest) {
      sum *= exp_of(highest - most);
      highest = most;
    }
    const float reference = highest == -INFINITY ? 0.0F : highest;
#pragma unroll
    for (int j = 0; j < N; ++j) sum += exp_of(to_float(pack.values[j]) - reference);
  }
  __device__ __forceinline__ void merge(float other_highest, float other_sum) {
    const float most = fmaxf(highest, other_highest);
    const float mine = highest == -INFINITY ? sum : sum * exp_of(highest - most);
    const float others = other_highest == -INFINITY ? other_sum : other_sum * exp_of(other_highest - most);
    highest = most;
    sum = mine + others;
  }
  __device__ __forceinline__ void merge_warp() {
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other_highest = __shfl_xor_sync(0xffffffffU, highest, offset);
      const float other_sum = __shfl_xor_sync(0xffffffffU, sum, offset);
      merge(other_highest, other_sum);
    }
  }
};

__device__ Softmax merge_block(Softmax mine) {
  __shared__ float highest[32];
  __shared__ float sums[32];
  mine.merge_warp();
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) {
    highest[threadIdx.x / 32] = mine.highest;
    sums[threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  mine.highest = highest[lane];  // as many warps as lanes
  mine.sum = sums[lane];
  mine.merge_warp();
  return mine;
}

template <class T, int N>
__device__ Softmax row_softmax(const T* x, std::int64_t width) {
  Softmax mine;
  const std::int64_t packs = width / N;
  for (std::int64_t p = threadIdx.x; p < packs; p += kThreads) mine.add(Pack<T, N>::load(x + p * N));
  for (std::int64_t i = packs * N + threadIdx.x; i < width; i += kThreads) mine.add(Pack<T, 1>{{x[i]}});
  return merge_block(mine);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_rows(DeviceRows logits, const std::int32_t* targets, float* nll_rows) {
  const std::int64_t t = blockIdx.x;
  T* x = static_cast<T*>(logits.data) + t * logits.stride;
  const std::int64_t width = logits.width;
  const std::int64_t packs = width / N;
  const std::int64_t target = targets[t];
  if (target < 0) {
    Pack<T, N> zero;
#pragma unroll
    for (int j = 0; j < N; ++j) zero.values[j] = from_float<T>(0.0F);
    for (std::int64_t p = threadIdx.x; p < packs; p += kThreads) zero.store(x + p * N);
    for (std::int64_t i = packs * N + threadIdx.x; i < width; i += kThreads) x[i] = from_float<T>(0.0F);
    if (threadIdx.x == 0) nll_rows[t] = 0;
    return;
  }
  const Softmax all = row_softmax<T, N>(x, width);
  const bool known = target < width;
  const float wanted = known ? to_float(x[target]) : NAN;
  __syncthreads();  // everyone has read the target's logit before it is overwritten
  if (threadIdx.x == 0) nll_rows[t] = logf(all.sum) + (all.highest - wanted);
  const float inverse = known ? 1.0F / all.sum : NAN;
  const auto gradient = [&](float value, std::int64_t i) {
    return from_float<T>(exp_of(value - all.highest) * inverse - (i == target ? 1.0F : 0.0F));
  };
  for (std::int64_t p = threadIdx.x; p < packs; p += kThreads) {
    auto pack = Pack<T, N>::load(x + p * N);
#pragma unroll
    for (int j = 0; j < N; ++j) pack.values[j] = gradient(to_float(pack.values[j]), p * N + j);
    pack.store(x + p * N);
  }
  for (std::int64_t i = packs * N + threadIdx.x; i < width; i += kThreads) x[i] = gradient(to_float(x[i]), i);
}

// One block, so that the order of the sum is fixed.
__global__ void cross_entropy_sum(const float* nll_rows, std::int64_t count, double* nll_sum) {
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += static_cast<double>(nll_rows[i]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *nll_sum += sum;
}

}  // namespace

void cross_entropy_in_place(Type type, const DeviceRows& logits, const std::int32_t* targets, float* nll_rows,
                            double* nll_sum, cudaStream_t stream) {
  if (logits.count == 0) return;
  const auto rows = static_cast<unsigned>(logits.count);
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    if (vectorisable<T>(logits, kVector<T>)) {
      cross_entropy_rows<T, kVector<T>><<<rows, kThreads, 0, stream>>>(logits, targets, nll_rows);
    } else {
      cross_entropy_rows<T, 1><<<rows, kThreads, 0, stream>>>(logits, targets, nll_rows);
    }
  });
  RT_CUDA_CHECK(cudaGetLastError());
  cross_entropy_sum<<<1, 1024, 0, stream>>>(nll_rows, logits.count, nll_sum);
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
