// Bound: bytes, T * H elements read and written.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"

namespace ranktune::kernels::cuda {
namespace {

// Rows are copied as they are, in units of 2, 4 or 16 bytes.
template <class Unit>
__global__ void embedding_rows(const std::int32_t* ids, const Unit* weight, std::int64_t weight_stride,
                               std::int64_t vocab, Unit* out, std::int64_t out_stride, std::int64_t units) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t id = ids[t];
  const bool known = id >= 0 && id < vocab;
  Unit nan;
  for (unsigned b = 0; b < sizeof(Unit); ++b) reinterpret_cast<unsigned char*>(&nan)[b] = 0xFF;
  for (std::int64_t i = threadIdx.x; i < units; i += blockDim.x) {
    out[t * out_stride + i] = known ? weight[id * weight_stride + i] : nan;
  }
}

template <class Unit>
void launch(std::int64_t element, const std::int32_t* ids, const DeviceRows& weight, const DeviceRows& out,
            cudaStream_t stream) {
  const std::int64_t per_unit = static_cast<std::int64_t>(sizeof(Unit)) / element;
  embedding_rows<<<static_cast<unsigned>(out.count), 256, 0, stream>>>(
      ids, static_cast<const Unit*>(weight.data), weight.stride / per_unit, weight.count,
      static_cast<Unit*>(out.data), out.stride / per_unit, out.width / per_unit);
}

}  // namespace

void embedding_forward(Type type, const std::int32_t* ids, const DeviceRows& weight, const DeviceRows& out,
                       cudaStream_t stream) {
  if (out.count == 0) return;
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    constexpr int kN = kVector<T>;
    const bool wide = vectorisable<T>(weight, kN) && vectorisable<T>(out, kN) && out.width % kN == 0;
    if (wide) {
      launch<uint4>(sizeof(T), ids, weight, out, stream);
    } else {
      launch<T>(sizeof(T), ids, weight, out, stream);
    }
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
