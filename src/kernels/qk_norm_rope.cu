// One warp a head of a token; a lane holds up to kMost pairs (i, i + head_dim / 2).
// Bound: bytes, T * (heads + kv_heads) * head_dim elements read and written.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"

namespace ranktune::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMost = 4;  // head_dim up to 256

// The head this warp works on.
struct Head {
  std::int64_t token, index;
  bool exists;
  __device__ Head(std::int64_t tokens, std::int64_t heads) {
    const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
    token = number / heads;
    index = number % heads;
    exists = token < tokens;
  }
};

// Row `position` of a table [positions, half]; NaN outside.
__device__ __forceinline__ float at_position(const float* table, const RotaryArguments& r,
                                             std::int64_t position, std::int64_t i) {
  const bool known = position >= 0 && position < r.table;
  return known ? table[position * (r.head_dim / 2) + i] : __int_as_float(0x7fffffff);
}

template <class T, int N>
__global__ void forward(DeviceRows in, DeviceRows out, RotaryArguments r) {
  const Head head(in.count, r.heads + r.kv_heads);
  if (!head.exists) return;
  const std::int64_t half = r.head_dim / 2;
  const unsigned lane = threadIdx.x % 32;
  const T* x = static_cast<const T*>(in.data) + head.token * in.stride + head.index * r.head_dim;
  T* y = static_cast<T*>(out.data) + head.token * out.stride + head.index * r.head_dim;
  const T* weight = static_cast<const T*>(head.index < r.heads ? r.q_weight : r.k_weight);
  Pack<T, N> low[kMost / N], high[kMost / N];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kMost / N; ++k) {
    const std::int64_t i = (k * 32 + lane) * N;
    if (i >= half) continue;
    low[k] = Pack<T, N>::load(x + i);
    high[k] = Pack<T, N>::load(x + half + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float a = to_float(low[k].values[j]);
      const float b = to_float(high[k].values[j]);
      squares += a * a + b * b;
    }
  }
  float factor = 1;
  if (weight != nullptr) {
    factor = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(r.head_dim) + r.eps);
    if (lane == 0) r.rstd[head.token * (r.heads + r.kv_heads) + head.index] = factor;
  }
  const std::int64_t position = r.positions[head.token];
#pragma unroll
  for (int k = 0; k < kMost / N; ++k) {
    const std::int64_t i = (k * 32 + lane) * N;
    if (i >= half) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float a = to_float(low[k].values[j]);
      float b = to_float(high[k].values[j]);
      if (weight != nullptr) {  // rounded between the two products, as Transformers does
        a = to_float(from_float<T>(a * factor)) * to_float(weight[i + j]);
        b = to_float(from_float<T>(b * factor)) * to_float(weight[half + i + j]);
      }
      const float c = at_position(r.cosines, r, position, i + j);
      const float s = at_position(r.sines, r, position, i + j);
      low[k].values[j] = from_float<T>(a * c - b * s);
      high[k].values[j] = from_float<T>(b * c + a * s);
    }
    low[k].store(y + i);
    high[k].store(y + half + i);
  }
}

template <class T, int N>
__global__ void backward(DeviceRows dqk, DeviceRows in, RotaryArguments r) {
  const Head head(dqk.count, r.heads + r.kv_heads);
  if (!head.exists) return;
  const std::int64_t half = r.head_dim / 2;
  const unsigned lane = threadIdx.x % 32;
  T* d = static_cast<T*>(dqk.data) + head.token * dqk.stride + head.index * r.head_dim;
  const T* x = static_cast<const T*>(in.data) + head.token * in.stride + head.index * r.head_dim;
  const T* weight = static_cast<const T*>(head.index < r.heads ? r.q_weight : r.k_weight);
  const std::int64_t position = r.positions[head.token];
  float low[kMost], high[kMost];  // rotated back, times the weight
  float dot = 0;
#pragma unroll
  for (int k = 0; k < kMost / N; ++k) {
    const std::int64_t i = (k * 32 + lane) * N;
    if (i >= half) continue;
    const auto d_low = Pack<T, N>::load(d + i);
    const auto d_high = Pack<T, N>::load(d + half + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float a = to_float(d_low.values[j]);
      const float b = to_float(d_high.values[j]);
      const float c = at_position(r.cosines, r, position, i + j);
      const float s = at_position(r.sines, r, position, i + j);
      low[k * N + j] = a * c + b * s;
      high[k * N + j] = b * c - a * s;
      if (weight != nullptr) {
        low[k * N + j] *= to_float(weight[i + j]);
        high[k * N + j] *= to_float(weight[half + i + j]);
        dot += low[k * N + j] * to_float(x[i + j]) + high[k * N + j] * to_float(x[half + i + j]);
      }
    }
  }
  float factor = 1;
  float along = 0;
  if (weight != nullptr) {
    factor = r.rstd[head.token * (r.heads + r.kv_heads) + head.index];
    along = warp_sum(dot) * factor * factor / static_cast<float>(r.head_dim);
  }
#pragma unroll
  for (int k = 0; k < kMost / N; ++k) {
    const std::int64_t i = (k * 32 + lane) * N;
    if (i >= half) continue;
    Pack<T, N> d_low, d_high;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float x_low = weight != nullptr ? to_float(x[i + j]) : 0.0F;
      const float x_high = weight != nullptr ? to_float(x[half + i + j]) : 0.0F;
      d_low.values[j] = from_float<T>(factor * (low[k * N + j] - x_low * along));
      d_high.values[j] = from_float<T>(factor * (high[k * N + j] - x_high * along));
    }
    d_low.store(d + i);
    d_high.store(d + half + i);
  }
}

// Packs of 2 neighbouring pairs fill a 128-byte line a warp in bf16; single ones where the layout is odd.
template <class T>
bool in_pairs(const DeviceRows& a, const DeviceRows& b, const RotaryArguments& r) {
  return (r.head_dim / 2) % 2 == 0 && vectorisable<T>(a, 2) && vectorisable<T>(b, 2);
}

unsigned grid(const DeviceRows& rows, const RotaryArguments& r) {
  RT_CHECK(r.head_dim <= 64 * kMost, "the rotary kernel takes head_dim up to 256");
  return blocks_for(rows.count * (r.heads + r.kv_heads), kWarps);
}

}  // namespace

void qk_norm_rope_forward(Type type, const DeviceRows& in, const DeviceRows& out,
                          const RotaryArguments& rotary, cudaStream_t stream) {
  if (in.count == 0) return;
  const unsigned blocks = grid(in, rotary);
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    if (in_pairs<T>(in, out, rotary)) {
      forward<T, 2><<<blocks, kWarps * 32, 0, stream>>>(in, out, rotary);
    } else {
      forward<T, 1><<<blocks, kWarps * 32, 0, stream>>>(in, out, rotary);
    }
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

void qk_norm_rope_backward(Type type, const DeviceRows& dqk, const DeviceRows& in,
                           const RotaryArguments& rotary, cudaStream_t stream) {
  if (dqk.count == 0) return;
  const unsigned blocks = grid(dqk, rotary);
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    if (in_pairs<T>(dqk, dqk, rotary)) {
      backward<T, 2><<<blocks, kWarps * 32, 0, stream>>>(dqk, in, rotary);
    } else {
      backward<T, 1><<<blocks, kWarps * 32, 0, stream>>>(dqk, in, rotary);
    }
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
