// Bound: bytes, 3 * T * I elements forward, 5 * T * I backward (6 where the result is written again).
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"

namespace ranktune::kernels::cuda {
namespace {

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0F / (1.0F + __expf(-x));
}

template <class T, int N>
__global__ void swiglu_forward_rows(DeviceRows gate_up, DeviceRows out) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= out.width) return;
  for (std::int64_t t = blockIdx.y; t < out.count; t += gridDim.y) {
    const T* x = static_cast<const T*>(gate_up.data) + t * gate_up.stride + i;
    const auto gate = Pack<T, N>::load(x);
    const auto up = Pack<T, N>::load(x + out.width);
    Pack<T, N> y;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = to_float(gate.values[j]);
      y.values[j] = from_float<T>(g * sigmoid(g) * to_float(up.values[j]));
    }
    y.store(static_cast<T*>(out.data) + t * out.stride + i);
  }
}

// silu'(g) = s * (1 + g * (1 - s)) with s the sigmoid of g.
template <class T, int N>
__global__ void swiglu_backward_rows(DeviceRows dout, DeviceRows gate_up, DeviceRows dgate_up,
                                     DeviceRows out) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= dout.width) return;
  for (std::int64_t t = blockIdx.y; t < dout.count; t += gridDim.y) {
    const T* x = static_cast<const T*>(gate_up.data) + t * gate_up.stride + i;
    const auto gate = Pack<T, N>::load(x);
    const auto up = Pack<T, N>::load(x + dout.width);
    const auto dy = Pack<T, N>::load(static_cast<const T*>(dout.data) + t * dout.stride + i);
    Pack<T, N> dgate, dup, y;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = to_float(gate.values[j]);
      const float d = to_float(dy.values[j]);
      const float s = sigmoid(g);
      const float u = to_float(up.values[j]);
      y.values[j] = from_float<T>(g * s * u);
      dgate.values[j] = from_float<T>(d * u * s * (1.0F + g * (1.0F - s)));
      dup.values[j] = from_float<T>(d * g * s);
    }
    T* to = static_cast<T*>(dgate_up.data) + t * dgate_up.stride + i;
    dgate.store(to);
    dup.store(to + dout.width);
    if (out.data != nullptr) y.store(static_cast<T*>(out.data) + t * out.stride + i);
  }
}

dim3 grid(std::int64_t packs, std::int64_t rows) {
  return {blocks_for(packs, 256), blocks_for(rows, 1, 65535), 1};
}

}  // namespace

void swiglu_forward(Type type, const DeviceRows& gate_up, const DeviceRows& out, cudaStream_t stream) {
  if (out.count == 0) return;
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    constexpr int kN = kVector<T>;
    if (out.width % kN == 0 && vectorisable<T>(gate_up, kN) && vectorisable<T>(out, kN)) {
      swiglu_forward_rows<T, kN><<<grid(out.width / kN, out.count), 256, 0, stream>>>(gate_up, out);
    } else {
      swiglu_forward_rows<T, 1><<<grid(out.width, out.count), 256, 0, stream>>>(gate_up, out);
    }
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

void swiglu_backward(Type type, const DeviceRows& dout, const DeviceRows& gate_up, const DeviceRows& dgate_up,
                     const DeviceRows& out, cudaStream_t stream) {
  if (dout.count == 0) return;
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    constexpr int kN = kVector<T>;
    if (dout.width % kN == 0 && vectorisable<T>(dout, kN) && vectorisable<T>(gate_up, kN) &&
        vectorisable<T>(dgate_up, kN) && vectorisable<T>(out, kN)) {
      swiglu_backward_rows<T, kN>
          <<<grid(dout.width / kN, dout.count), 256, 0, stream>>>(dout, gate_up, dgate_up, out);
    } else {
      swiglu_backward_rows<T, 1>
          <<<grid(dout.width, dout.count), 256, 0, stream>>>(dout, gate_up, dgate_up, out);
    }
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
