// A head of a token is rotated by `lanes` neighbouring threads, each with up to `packs` packs of N pairs (i,
// i + head_dim / 2), so that a thread moves 16 bytes at a time where the layout allows. Bound: bytes, T *
// (heads + kv_heads) * head_dim elements read and written (backward with norms: the input read as well).
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"

namespace ranktune::kernels::cuda {
namespace {

constexpr int kThreads = 128;

template <int kLanes>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}

// The head that this thread works on. Threads behind the last one repeat it and store nothing, since the sums
// want whole warps.
template <int kLanes>
struct Head {
  std::int64_t token, index;
  unsigned lane;
  bool exists;

  __device__ __forceinline__ Head(std::int64_t tokens, const RotaryArguments& r) {
    const auto heads = static_cast<unsigned>(r.heads + r.kv_heads);
    const unsigned all = static_cast<unsigned>(tokens) * heads;
    unsigned number = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes;
    exists = number < all;
    number = exists ? number : all - 1;
    token = number / heads;
    index = number % heads;
    lane = threadIdx.x % kLanes;
  }
};

// Cosine and sine of N neighbouring pairs; NaN where the position is outside the table.
template <int N>
struct Angles {
  Pack<float, N> cosine, sine;

  __device__ __forceinline__ Angles(const RotaryArguments& r, std::int64_t token, std::int64_t i) {
    const std::int64_t position = r.positions[token];
    const bool known = position >= 0 && position < r.table;
    const std::int64_t at = (known ? position : 0) * (r.head_dim / 2) + i;
    cosine = Pack<float, N>::load(r.cosines + at);
    sine = Pack<float, N>::load(r.sines + at);
#pragma unroll
    for (int j = 0; j < N; ++j) cosine.values[j] = known ? cosine.values[j] : __int_as_float(0x7fffffff);
  }
};

template <class T, int N, int kLanes, int kPacks>
__global__ void __launch_bounds__(kThreads) rotary_forward(DeviceRows in, DeviceRows out, RotaryArguments r) {
  const Head<kLanes> head(in.count, r);
  const std::int64_t half = r.head_dim / 2;
  const T* x = static_cast<const T*>(in.data) + head.token * in.stride + head.index * r.head_dim;
  T* y = static_cast<T*>(out.data) + head.token * out.stride + head.index * r.head_dim;
  const T* weight = static_cast<const T*>(head.index < r.heads ? r.q_weight : r.k_weight);
  Pack<T, N> low[kPacks], high[kPacks];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t i = (k * kLanes + head.lane) * N;
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
  squares = lanes_sum<kLanes>(squares);
  if (!head.exists) return;
  const float factor = 1.0F / sqrtf(squares / static_cast<float>(r.head_dim) + r.eps);
  if (weight != nullptr && head.lane == 0) r.rstd[head.token * (r.heads + r.kv_heads) + head.index] = factor;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t i = (k * kLanes + head.lane) * N;
    if (i >= half) continue;
    const Angles<N> angles(r, head.token, i);
    Pack<T, N> w_low{}, w_high{};
    if (weight != nullptr) {
      w_low = Pack<T, N>::load(weight + i);
      w_high = Pack<T, N>::load(weight + half + i);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float a = to_float(low[k].values[j]);
      float b = to_float(high[k].values[j]);
      if (weight != nullptr) {  // rounded between the two products, as Transformers does
        a = to_float(from_float<T>(a * factor)) * to_float(w_low.values[j]);
        b = to_float(from_float<T>(b * factor)) * to_float(w_high.values[j]);
      }
      const float c = angles.cosine.values[j];
      const float s = angles.sine.values[j];
      low[k].values[j] = from_float<T>(a * c - b * s);
      high[k].values[j] = from_float<T>(b * c + a * s);
    }
    low[k].store(y + i);
    high[k].store(y + half + i);
  }
}

template <class T, int N, int kLanes, int kPacks>
__global__ void __launch_bounds__(kThreads)
    rotary_backward(DeviceRows dqk, DeviceRows in, RotaryArguments r) {
  const Head<kLanes> head(dqk.count, r);
  const std::int64_t half = r.head_dim / 2;
  T* d = static_cast<T*>(dqk.data) + head.token * dqk.stride + head.index * r.head_dim;
  const T* x = static_cast<const T*>(in.data) + head.token * in.stride + head.index * r.head_dim;
  const T* weight = static_cast<const T*>(head.index < r.heads ? r.q_weight : r.k_weight);
  float low[kPacks][N], high[kPacks][N];  // rotated back, times the weight
  Pack<T, N> x_low[kPacks]{}, x_high[kPacks]{};
  float dot = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t i = (k * kLanes + head.lane) * N;
    if (i >= half) continue;
    const auto d_low = Pack<T, N>::load(d + i);
    const auto d_high = Pack<T, N>::load(d + half + i);
    const Angles<N> angles(r, head.token, i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float a = to_float(d_low.values[j]);
      const float b = to_float(d_high.values[j]);
      low[k][j] = a * angles.cosine.values[j] + b * angles.sine.values[j];
      high[k][j] = b * angles.cosine.values[j] - a * angles.sine.values[j];
    }
    if (weight == nullptr) continue;
    x_low[k] = Pack<T, N>::load(x + i);
    x_high[k] = Pack<T, N>::load(x + half + i);
    const auto w_low = Pack<T, N>::load(weight + i);
    const auto w_high = Pack<T, N>::load(weight + half + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      low[k][j] *= to_float(w_low.values[j]);
      high[k][j] *= to_float(w_high.values[j]);
      dot += low[k][j] * to_float(x_low[k].values[j]) + high[k][j] * to_float(x_high[k].values[j]);
    }
  }
  dot = lanes_sum<kLanes>(dot);
  if (!head.exists) return;
  const float factor = weight != nullptr ? r.rstd[head.token * (r.heads + r.kv_heads) + head.index] : 1.0F;
  const float along = dot * factor * factor / static_cast<float>(r.head_dim);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t i = (k * kLanes + head.lane) * N;
    if (i >= half) continue;
    Pack<T, N> d_low, d_high;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      d_low.values[j] = from_float<T>(factor * (low[k][j] - to_float(x_low[k].values[j]) * along));
      d_high.values[j] = from_float<T>(factor * (high[k][j] - to_float(x_high[k].values[j]) * along));
    }
    d_low.store(d + i);
    d_high.store(d + half + i);
  }
}

// Calls body with N, lanes and packs as constants: 16-byte packs where everything is aligned and the head is
// a power of two of them, else single elements, a warp a head, head_dim up to 256.
template <class T, class Body>
void with_layout(const DeviceRows& a, const DeviceRows& b, const RotaryArguments& r, const Body& body) {
  constexpr int kN = kVector<T>;
  const auto constants = [&](auto n, auto lanes, auto packs) {
    body(n, lanes, packs, blocks_for(a.count * (r.heads + r.kv_heads), kThreads / lanes.value));
  };
  RT_CHECK(r.head_dim <= 256,
           "the rotary kernel takes head_dim up to 256, not " + std::to_string(r.head_dim));
  RT_CHECK(a.count * (r.heads + r.kv_heads) < (std::int64_t{1} << 31), "too many heads in one pass");
  const bool wide = vectorisable<T>(a, kN) && vectorisable<T>(b, kN) && aligned(r.q_weight, 16) &&
                    aligned(r.k_weight, 16) && aligned(r.cosines, kN * 4) && aligned(r.sines, kN * 4) &&
                    r.head_dim % (2 * kN) == 0;
  const std::int64_t lanes = wide ? r.head_dim / (2 * kN) : 0;
  using One = std::integral_constant<int, 1>;
  using Wide = std::integral_constant<int, kN>;
  if (lanes == 4) return constants(Wide{}, std::integral_constant<int, 4>{}, One{});
  if (lanes == 8) return constants(Wide{}, std::integral_constant<int, 8>{}, One{});
  if (lanes == 16) return constants(Wide{}, std::integral_constant<int, 16>{}, One{});
  if (lanes == 32) return constants(Wide{}, std::integral_constant<int, 32>{}, One{});
  constants(One{}, std::integral_constant<int, 32>{}, std::integral_constant<int, 4>{});
}

}  // namespace

void qk_norm_rope_forward(Type type, const DeviceRows& in, const DeviceRows& out,
                          const RotaryArguments& rotary, cudaStream_t stream) {
  if (in.count == 0) return;
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    with_layout<T>(in, out, rotary, [&](auto n, auto lanes, auto packs, unsigned blocks) {
      rotary_forward<T, n.value, lanes.value, packs.value><<<blocks, kThreads, 0, stream>>>(in, out, rotary);
    });
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

void qk_norm_rope_backward(Type type, const DeviceRows& dqk, const DeviceRows& in,
                           const RotaryArguments& rotary, cudaStream_t stream) {
  if (dqk.count == 0) return;
  with_type(type, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    with_layout<T>(dqk, in, rotary, [&](auto n, auto lanes, auto packs, unsigned blocks) {
      rotary_backward<T, n.value, lanes.value, packs.value><<<blocks, kThreads, 0, stream>>>(dqk, in, rotary);
    });
  });
  RT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ranktune::kernels::cuda
