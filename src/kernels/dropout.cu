// Bound: bytes, 2 * T * H elements.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"
#include "kernels/dropout_mask.hpp"

namespace ranktune::kernels::cuda {
namespace {

// A thread takes 4 channels, one draw.
template <class T, int N>
__global__ void dropout_rows(DeviceRows x, DropoutMask mask, const std::int64_t* step,
                             const std::int64_t* sample_of_token, const std::int32_t* positions,
                             DeviceRows out) {
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (block * 4 >= x.width) return;
  for (std::int64_t t = blockIdx.y; t < x.count; t += gridDim.y) {
    const Philox4 place = DropoutMask::place(*step, sample_of_token[t], positions[t]);
    const Philox4 bits = mask.draw(place, static_cast<std::uint32_t>(block));
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    const T* from = static_cast<const T*>(x.data) + t * x.stride + block * 4;
    T* to = static_cast<T*>(out.data) + t * out.stride + block * 4;
#pragma unroll
    for (int k = 0; k < 4; k += N) {
      if (block * 4 + k >= x.width) break;
      auto pack = Pack<T, N>::load(from + k);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        pack.values[j] =
            from_float<T>(mask.keeps(words[k + j]) ? to_float(pack.values[j]) * mask.scale : 0.0F);
      }
      pack.store(to + k);
    }
  }
}

}  // namespace

void dropout(Type type, const DeviceRows& x, const DropoutMask& mask, const std::int64_t* step,
             const std::int64_t* sample_of_token, const std::int32_t* positions, const DeviceRows& out,
             cudaStream_t stream) {
  if (x.count == 0) return;
  const dim3 grid(blocks_for(x.width, 4 * 128), blocks_for(x.count, 1, 65535), 1);
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    if (x.width % 4 == 0 && vectorisable<T>(x, 4) && vectorisable<T>(out, 4)) {
      dropout_rows<T, 4><<<grid, 128, 0, stream>>>(x, mask, step, sample_of_token, positions, out);
    } else {
      dropout_rows<T, 1><<<grid, 128, 0, stream>>>(x, mask, step, sample_of_token, positions, out);
    }
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
