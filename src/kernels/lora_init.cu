// Bound: bytes, each element written once; a Philox draw gives four.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"
#include "kernels/dummy_values.hpp"

namespace ranktune::kernels::cuda {
namespace {

// A thread takes N neighbouring elements, which N = 4 draws at once; with N = 1 each draws its own four and
// keeps one.
template <class T, int N>
__global__ void fill_normal(DeviceRows weight, float scale, std::uint64_t seed, std::uint32_t random_stream) {
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (c >= weight.width) return;
  for (std::int64_t r = blockIdx.y; r < weight.count; r += gridDim.y) {
    const auto index = static_cast<std::uint64_t>(r * weight.width + c);
    const Philox4 bits = random_bits(seed, RandomPurpose::dummy_weights, random_stream, index / 4);
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    Pack<T, N> values;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const std::uint32_t word = N == 4 ? words[j] : words[index % 4];
      values.values[j] = from_float<T>(centred_bytes(word) * scale);
    }
    values.store(static_cast<T*>(weight.data) + r * weight.stride + c);
  }
}

}  // namespace

void dummy_normal(Type type, const DeviceRows& weight, float scale, std::uint64_t seed,
                  std::uint32_t random_stream, cudaStream_t stream) {
  if (weight.count == 0 || weight.width == 0) return;
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    const bool wide = weight.width % 4 == 0 && vectorisable<T>(weight, 4);
    const dim3 grid(blocks_for(weight.width, wide ? 1024 : 256), blocks_for(weight.count, 1, 65535), 1);
    if (wide) {
      fill_normal<T, 4><<<grid, 256, 0, stream>>>(weight, scale, seed, random_stream);
    } else {
      fill_normal<T, 1><<<grid, 256, 0, stream>>>(weight, scale, seed, random_stream);
    }
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
