// Bound: bytes, half a byte read and 2 or 4 written per weight.
#include <cuda_fp16.h>

#include "kernels/device.cuh"
#include "kernels/nf4_launch.hpp"
#include "kernels/nf4_values.hpp"

namespace ranktune::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerItem = 8;  // weights that a thread decodes at once, from 4 bytes

struct Nf4Table {
  float values[16];
};

__device__ __forceinline__ float rounded(float x, int to) {
  if (to == 1) return __bfloat162float(__float2bfloat16_rn(x));
  if (to == 2) return __half2float(__float2half_rn(x));
  return x;
}

// Blocks take rows in turns. The table stands once per lane in shared memory, so that lookups never collide.
template <class T>
__global__ void __launch_bounds__(kThreads)
    decode_nf4_rows(Nf4Group group, Nf4Table table, std::int64_t columns, const T* behind,
                    std::int64_t behind_stride, std::int64_t behind_width, T* out, std::int64_t out_stride,
                    std::int64_t rows) {
  __shared__ float values[16 * 32];
  for (int i = static_cast<int>(threadIdx.x); i < 16 * 32; i += kThreads) values[i] = table.values[i / 32];
  __syncthreads();
  const float* mine = values + threadIdx.x % 32;
  using Packed = Pack<T, kPerItem>;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    int p = 0;
    while (p + 1 < group.count && row >= group.parts[p + 1].first_row) ++p;
    const Nf4Rows part = group.parts[p];
    T* target = out + row * out_stride;
    for (std::int64_t c = threadIdx.x * kPerItem; c < behind_width; c += kThreads * kPerItem) {
      Packed::load(behind + row * behind_stride + c).store(target + columns + c);
    }
    if (part.packed == nullptr) continue;
    const std::int64_t first = (row - part.first_row) * columns;
    const float offset = *part.offset;
    for (std::int64_t c = threadIdx.x * kPerItem; c < columns; c += kThreads * kPerItem) {
      const std::int64_t at = first + c;
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(part.packed + at / 2);
      const std::int64_t block = at / kNf4Block;
      const float absmax = __fadd_rn(
          __fmul_rn(part.absmax_map[part.absmax[block]], part.nested_absmax[block / kNf4NestedBlock]),
          offset);
      Packed decoded;
#pragma unroll
      for (int i = 0; i < kPerItem; ++i) {
        // Little-endian bytes, the high half of each first.
        const std::uint32_t code = codes >> (8 * (i / 2) + (i % 2 == 0 ? 4 : 0)) & 15U;
        decoded.values[i] = from_float<T>(rounded(mine[code * 32] * absmax, part.rounded_to));
      }
      decoded.store(target + c);
    }
  }
}

}  // namespace

void decode_nf4(Type type, const Nf4Group& group, std::int64_t columns, const DeviceRows& behind,
                const DeviceRows& out, cudaStream_t stream) {
  if (out.count == 0) return;
  Nf4Table table{};
  for (int i = 0; i < 16; ++i) table.values[i] = kNf4Values[static_cast<std::size_t>(i)];
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    decode_nf4_rows<<<blocks_for(out.count, 1, 132 * 8), kThreads, 0, stream>>>(
        group, table, columns, static_cast<const T*>(behind.data), behind.stride, behind.width,
        static_cast<T*>(out.data), out.stride, out.count);
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
