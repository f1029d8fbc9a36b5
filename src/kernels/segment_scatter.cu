// Bound: bytes, one fp32 read and one element written per parameter.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"

namespace ranktune::kernels::cuda {
namespace {

template <class T, int N>
__device__ void copy(const float* from, T* to, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  const std::int64_t packs = cols / N;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; p < rows * packs;
       p += step) {
    const std::int64_t row = p / packs;
    const auto values = Pack<float, N>::load(from + p * N);
    Pack<T, N> rounded;
#pragma unroll
    for (int j = 0; j < N; ++j) rounded.values[j] = from_float<T>(values.values[j]);
    rounded.store(to + row * stride + (p - row * packs) * N);
  }
}

template <class T>
__device__ void copy_segment(const std::int64_t* segment, const float* master) {
  const float* from = master + segment[scatter_offset];
  T* to = reinterpret_cast<T*>(segment[scatter_address]);
  const std::int64_t cols = segment[scatter_cols];
  const std::int64_t stride = segment[scatter_stride];
  const bool wide = cols % 4 == 0 && stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0 &&
                    reinterpret_cast<std::uintptr_t>(to) % (4 * sizeof(T)) == 0;
  if (wide) {
    copy<T, 4>(from, to, segment[scatter_rows], cols, stride);
  } else {
    copy<T, 1>(from, to, segment[scatter_rows], cols, stride);
  }
}

__global__ void scatter(const std::int64_t* table, const float* master) {
  const std::int64_t* segment = table + static_cast<std::int64_t>(blockIdx.y) * scatter_columns;
  if (segment[scatter_type] == static_cast<std::int64_t>(Type::bf16)) {
    copy_segment<bf16>(segment, master);
  } else {
    copy_segment<float>(segment, master);
  }
}

}  // namespace

void segment_scatter(const std::int64_t* table, std::int64_t segments, const float* master,
                     cudaStream_t stream) {
  constexpr std::int64_t kMostSegments = 65535;  // of a grid's second dimension
  for (std::int64_t first = 0; first < segments; first += kMostSegments) {
    const std::int64_t count = segments - first < kMostSegments ? segments - first : kMostSegments;
    scatter<<<dim3(16, static_cast<unsigned>(count), 1), 256, 0, stream>>>(table + first * scatter_columns,
                                                                           master);
    RT_CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace ranktune::kernels::cuda
