// One block a row, the row kept in registers between the statistics and the result.
// Bound: bytes. Forward: residual and delta read, residual and out written; backward: dout, residual and
// dresidual read, dresidual written.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"

namespace ranktune::kernels::cuda {
namespace {

constexpr int kMostThreads = 1024;

// Each thread holds kItems packs of N elements.
template <class T, int N, int kItems>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm_forward_rows(DeviceRows in, DeviceRows delta, DeviceRows sum, const T* weight, float eps,
                          DeviceRows out, float* rstd) {
  __shared__ float shared[32];
  const std::int64_t t = blockIdx.x;
  const T* x = static_cast<const T*>(in.data) + t * in.stride;
  Pack<T, N> row[kItems];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const std::int64_t i = (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N;
    if (i >= in.width) continue;
    row[k] = Pack<T, N>::load(x + i);
    if (delta.data != nullptr) {
      const auto added = Pack<T, N>::load(static_cast<const T*>(delta.data) + t * delta.stride + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        row[k].values[j] = from_float<T>(to_float(row[k].values[j]) + to_float(added.values[j]));
      }
      row[k].store(static_cast<T*>(sum.data) + t * sum.stride + i);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float value = to_float(row[k].values[j]);
      squares += value * value;
    }
  }
  squares = block_sum(squares, shared);
  const float factor = 1.0F / sqrtf(squares / static_cast<float>(in.width) + eps);
  if (threadIdx.x == 0) rstd[t] = factor;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const std::int64_t i = (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N;
    if (i >= in.width) continue;
    const auto scale = Pack<T, N>::load(weight + i);
    Pack<T, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const T normalised =
          from_float<T>(to_float(row[k].values[j]) * factor);  // rounded, as Transformers does
      result.values[j] = from_float<T>(to_float(normalised) * to_float(scale.values[j]));
    }
    result.store(static_cast<T*>(out.data) + t * out.stride + i);
  }
}

// With y = x_hat * w and x_hat = x * r: dx += r * (dy * w - x_hat * mean(dy * w * x_hat)).
template <class T, int N, int kItems>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm_backward_rows(DeviceRows dout, DeviceRows residual, const T* weight, const float* rstd,
                           DeviceRows dx) {
  __shared__ float shared[32];
  const std::int64_t t = blockIdx.x;
  Pack<T, N> row[kItems];
  float slope[kItems][N];  // dy * w
  float dot = 0;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const std::int64_t i = (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N;
    if (i >= dout.width) continue;
    row[k] = Pack<T, N>::load(static_cast<const T*>(residual.data) + t * residual.stride + i);
    const auto dy = Pack<T, N>::load(static_cast<const T*>(dout.data) + t * dout.stride + i);
    const auto scale = Pack<T, N>::load(weight + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      slope[k][j] = to_float(dy.values[j]) * to_float(scale.values[j]);
      dot += slope[k][j] * to_float(row[k].values[j]);
    }
  }
  dot = block_sum(dot, shared);
  const float factor = rstd[t];
  const float along = dot * factor * factor / static_cast<float>(dout.width);
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const std::int64_t i = (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N;
    if (i >= dout.width) continue;
    T* to = static_cast<T*>(dx.data) + t * dx.stride + i;
    auto sum = Pack<T, N>::load(to);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float gradient = factor * (slope[k][j] - to_float(row[k].values[j]) * along);
      sum.values[j] = from_float<T>(to_float(sum.values[j]) + gradient);
    }
    sum.store(to);
  }
}

// Calls body with the pack width and the packs per thread as constants, and the threads of a block. What fits
// a block: 4096 packs of 16 bytes, or 16384 single elements where rows are not aligned.
template <class T, class Body>
void with_layout(bool wide, std::int64_t width, const Body& body) {
  const std::int64_t packs = wide ? width / kVector<T> : width;
  const auto threads = [&](int items) { return blocks_for(packs, 32 * items) * 32; };
  RT_CHECK(packs <= (wide ? 4096 : 16384), "RMSNorm rows of this width and alignment do not fit one block");
  if (wide && packs <= 1024) {
    body(std::integral_constant<int, kVector<T>>{}, std::integral_constant<int, 1>{}, threads(1));
  } else if (wide) {
    body(std::integral_constant<int, kVector<T>>{}, std::integral_constant<int, 4>{}, threads(4));
  } else if (packs <= 4096) {
    body(std::integral_constant<int, 1>{}, std::integral_constant<int, 4>{}, threads(4));
  } else {
    body(std::integral_constant<int, 1>{}, std::integral_constant<int, 16>{}, threads(16));
  }
}

}  // namespace

void add_rms_norm_forward(Type type, const DeviceRows& residual_in, const DeviceRows& delta,
                          const DeviceRows& residual_out, const void* weight, float eps,
                          const DeviceRows& out, float* rstd, cudaStream_t stream) {
  if (out.count == 0) return;
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    constexpr int kN = kVector<T>;
    const bool wide = out.width % kN == 0 && vectorisable<T>(residual_in, kN) && vectorisable<T>(delta, kN) &&
                      vectorisable<T>(residual_out, kN) && vectorisable<T>(out, kN) && aligned(weight, 16);
    with_layout<T>(wide, out.width, [&](auto n, auto items, unsigned threads) {
      rms_norm_forward_rows<T, n.value, items.value>
          <<<static_cast<unsigned>(out.count), threads, 0, stream>>>(
              residual_in, delta, residual_out, static_cast<const T*>(weight), eps, out, rstd);
    });
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

void rms_norm_backward(Type type, const DeviceRows& dout, const DeviceRows& residual, const void* weight,
                       const float* rstd, const DeviceRows& dresidual, cudaStream_t stream) {
  if (dout.count == 0) return;
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    constexpr int kN = kVector<T>;
    const bool wide = dout.width % kN == 0 && vectorisable<T>(dout, kN) && vectorisable<T>(residual, kN) &&
                      vectorisable<T>(dresidual, kN) && aligned(weight, 16);
    with_layout<T>(wide, dout.width, [&](auto n, auto items, unsigned threads) {
      rms_norm_backward_rows<T, n.value, items.value>
          <<<static_cast<unsigned>(dout.count), threads, 0, stream>>>(
              dout, residual, static_cast<const T*>(weight), rstd, dresidual);
    });
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
