// Causal attention in bf16 for short sequences, forward and backward, on the tensor cores (mma.sync
// m16n8k16), for head_dim 64 and 128. Q, K, V, dO and the gradients are read and written where the layers
// keep them, so nothing is copied, and the query heads of a KV head are summed in registers. The backward
// pass has a kernel for dQ and one for dK and dV: P is computed twice, and in exchange there is no sum over
// blocks, no atomics and no memory of its own; the bits depend on the inputs alone. The mathematics is flash
// attention's (Dao 2023). Bound: FLOP, 4 * head_dim * L^2 / 2 per head and sequence forward, 14 / 4 of it
// backward.
#include "kernels/cuda_launch.hpp"
#include "kernels/device.cuh"

namespace ranktune::kernels::cuda {
namespace {

constexpr int kTile = 64;      // queries and keys of a block
constexpr int kWarpRows = 16;  // of a tile, per warp
constexpr int kThreads = 128;  // of four warps, which share a tile
constexpr float kLog2E = 1.4426950408889634F;

// A tile of kTile rows of D elements in shared memory. 16-byte chunks are permuted within a row, so that
// neither ldmatrix nor its transposed form meets a bank twice.
template <int D>
struct Tile {
  static constexpr int kElements = kTile * D;

  __device__ static bf16* at(bf16* tile, int row, int column) {
    return tile + row * D + (((column / 8) ^ (row % 8)) * 8);
  }

  // Rows [first, first + kTile) of a matrix with `rows` rows; zeros behind the last one. Asynchronous.
  __device__ static void load(bf16* tile, const bf16* from, std::int64_t stride, int first, int rows,
                              int thread) {
    constexpr int kChunks = D / 8;
#pragma unroll
    for (int i = thread; i < kTile * kChunks; i += kThreads) {
      const int row = i / kChunks;
      const int column = i % kChunks * 8;
      const bool exists = first + row < rows;
      const bf16* source = from + (exists ? first + row : 0) * stride + column;
      const auto target = static_cast<unsigned>(__cvta_generic_to_shared(at(tile, row, column)));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source),
                   "r"(exists ? 16 : 0));
    }
  }
};

__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\n" ::: "memory");
}

__device__ __forceinline__ void ldmatrix(unsigned (&r)[4], const bf16* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(from));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void ldmatrix_transposed(unsigned (&r)[4], const bf16* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(from));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// c += a b; a [16, 16], b [16, 8], c [16, 8] spread over the warp. Lane 4 g + t holds c at rows g and g + 8,
// columns 2 t and 2 t + 1.
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

template <int kColumns>
using Accumulator = float[kColumns / 8][4];

template <int kColumns>
__device__ __forceinline__ void clear(Accumulator<kColumns>& c) {
#pragma unroll
  for (auto& part : c) {
#pragma unroll
    for (float& value : part) value = 0;
  }
}

// The a-operand of rows [row, row + 16) and columns [column, column + 16) of a tile.
template <int D>
__device__ __forceinline__ void load_a(unsigned (&a)[4], bf16* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  ldmatrix(a, Tile<D>::at(tile, row + lane % 16, column + lane / 16 * 8));
}

// c [16, kTile] += a [16, D] tile^T, where `a(kk)` gives the operand of columns [16 kk, 16 kk + 16).
template <int D, class A>
__device__ __forceinline__ void multiply_transposed(Accumulator<kTile>& c, const A& a, bf16* tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    unsigned left[4];
    a(left, kk);
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
      unsigned b[4];
      ldmatrix(b, Tile<D>::at(tile, n * 16 + lane % 8 + lane / 16 * 8, kk * 16 + lane / 8 % 2 * 8));
      mma(c[2 * n], left, b[0], b[1]);
      mma(c[2 * n + 1], left, b[2], b[3]);
    }
  }
}

// c [16, D] += p [16, kTile] tile, p rounded to bf16.
template <int D>
__device__ __forceinline__ void multiply(Accumulator<D>& c, const Accumulator<kTile>& p, bf16* tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int kk = 0; kk < kTile / 16; ++kk) {
    const unsigned left[4] = {packed(p[2 * kk][0], p[2 * kk][1]), packed(p[2 * kk][2], p[2 * kk][3]),
                              packed(p[2 * kk + 1][0], p[2 * kk + 1][1]),
                              packed(p[2 * kk + 1][2], p[2 * kk + 1][3])};
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      unsigned b[4];
      ldmatrix_transposed(b, Tile<D>::at(tile, kk * 16 + lane % 16, n * 16 + lane / 16 * 8));
      mma(c[2 * n], left, b[0], b[1]);
      mma(c[2 * n + 1], left, b[2], b[3]);
    }
  }
}

// Stores c [16, D], row r times factor[r / 8], to rows [first, first + 16) below `rows`.
template <int D>
__device__ __forceinline__ void store(const Accumulator<D>& c, const float (&factor)[2], bf16* to,
                                      std::int64_t stride, int first, int rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane / 4 + half * 8;
    if (row >= rows) continue;
    bf16* target = to + row * stride + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const unsigned pair = packed(c[n][2 * half] * factor[half], c[n][2 * half + 1] * factor[half]);
      *reinterpret_cast<unsigned*>(target + n * 8) = pair;
    }
  }
}

// The sequence and the rows of it that a block works on.
struct Span {
  int start, length;
  __device__ Span(const std::int32_t* cu_seqlens, unsigned sequence)
      : start(cu_seqlens[sequence]), length(cu_seqlens[sequence + 1] - start) {}
};

template <int D>
__device__ __forceinline__ const bf16* head_of(const HeadRows& x, int start, int head) {
  return static_cast<const bf16*>(x.data) + start * x.stride + head * D;
}
template <int D>
__device__ __forceinline__ bf16* head_of_mutable(const HeadRows& x, int start, int head) {
  return static_cast<bf16*>(x.data) + start * x.stride + head * D;
}

// One block: kTile queries of one head. O and the logarithm of the softmax sum.
template <int D>
__global__ void __launch_bounds__(kThreads) short_attention_out(ShortAttention s) {
  extern __shared__ bf16 shared[];
  bf16* keys = shared;
  bf16* values = shared + Tile<D>::kElements;
  const Span span(s.cu_seqlens, blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // the long ones first
  const int first = block * kTile;
  if (first >= span.length) return;
  const int kv_head = head / s.group;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp_row = thread / 32 * kWarpRows;
  const int lane = thread % 32;

  Tile<D>::load(keys, head_of<D>(s.q, span.start, head), s.q.stride, first, span.length, thread);
  wait_for_copies();
  __syncthreads();
  unsigned queries[D / 16][4];
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) load_a<D>(queries[kk], keys, warp_row, kk * 16);

  Accumulator<D> sum;
  clear<D>(sum);
  float highest[2] = {-INFINITY,
                      -INFINITY};  // of the rows lane / 4 and lane / 4 + 8, scaled, in powers of two
  float total[2] = {0, 0};
  for (int j = 0; j <= block; ++j) {
    __syncthreads();
    Tile<D>::load(keys, head_of<D>(s.k, span.start, kv_head), s.k.stride, j * kTile, span.length, thread);
    Tile<D>::load(values, head_of<D>(s.v, span.start, kv_head), s.v.stride, j * kTile, span.length, thread);
    wait_for_copies();
    __syncthreads();
    Accumulator<kTile> p;
    clear<kTile>(p);
    multiply_transposed<D>(
        p,
        [&](unsigned(&a)[4], int kk) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = queries[kk][i];
        },
        keys);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + half * 8;
      float most = highest[half];
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = p[n][2 * half + i];
          x = j == block && n * 8 + lane % 4 * 2 + i > row ? -INFINITY : x * (s.scale * kLog2E);
          most = fmaxf(most, x);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 2));
      const float correction = exp2f(highest[half] - most);
      highest[half] = most;
      total[half] *= correction;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        sum[n][2 * half] *= correction;
        sum[n][2 * half + 1] *= correction;
      }
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = p[n][2 * half + i];
          x = exp2f(x - most);
          total[half] += x;
        }
      }
    }
    multiply<D>(sum, p, values);
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] += __shfl_xor_sync(0xffffffffU, total[half], 1);
    total[half] += __shfl_xor_sync(0xffffffffU, total[half], 2);
    inverse[half] = 1.0F / total[half];
    const int row = first + warp_row + lane / 4 + half * 8;
    if (lane % 4 == 0 && row < span.length)
      s.lse[head * s.tokens + span.start + row] = highest[half] / kLog2E + logf(total[half]);
  }
  store<D>(sum, inverse, head_of_mutable<D>(s.out, span.start, head), s.out.stride, first + warp_row,
           span.length);
}

// One block: kTile queries of one head. dQ, and delta = dO . O of each row for the other kernel.
template <int D>
__global__ void __launch_bounds__(kThreads) short_attention_dq(ShortAttention s) {
  extern __shared__ bf16 shared[];
  __shared__ float deltas[kTile];
  bf16* keys = shared;
  bf16* values = shared + Tile<D>::kElements;
  const Span span(s.cu_seqlens, blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int first = block * kTile;
  if (first >= span.length) return;
  const int kv_head = head / s.group;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp_row = thread / 32 * kWarpRows;
  const int lane = thread % 32;

  Tile<D>::load(keys, head_of<D>(s.q, span.start, head), s.q.stride, first, span.length, thread);
  Tile<D>::load(values, head_of<D>(s.dout, span.start, head), s.dout.stride, first, span.length, thread);
  {  // two threads a row
    const int row = thread / 2;
    float delta = 0;
    if (first + row < span.length) {
      const bf16* o =
          head_of<D>(s.out, span.start, head) + (first + row) * s.out.stride + thread % 2 * (D / 2);
      const bf16* d =
          head_of<D>(s.dout, span.start, head) + (first + row) * s.dout.stride + thread % 2 * (D / 2);
#pragma unroll
      for (int i = 0; i < D / 2; i += 8) {
        const auto a = Pack<bf16, 8>::load(o + i);
        const auto b = Pack<bf16, 8>::load(d + i);
#pragma unroll
        for (int e = 0; e < 8; ++e) delta += to_float(a.values[e]) * to_float(b.values[e]);
      }
    }
    delta += __shfl_xor_sync(0xffffffffU, delta, 1);
    if (thread % 2 == 0) {
      deltas[row] = delta;
      if (first + row < span.length) s.delta[head * s.tokens + span.start + first + row] = delta;
    }
  }
  wait_for_copies();
  __syncthreads();
  unsigned queries[D / 16][4], douts[D / 16][4];
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    load_a<D>(queries[kk], keys, warp_row, kk * 16);
    load_a<D>(douts[kk], values, warp_row, kk * 16);
  }
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + half * 8;
    lse[half] = first + row < span.length ? s.lse[head * s.tokens + span.start + first + row] * kLog2E : 0.0F;
    delta[half] = deltas[row];
  }

  Accumulator<D> dq;
  clear<D>(dq);
  for (int j = 0; j <= block; ++j) {
    __syncthreads();
    Tile<D>::load(keys, head_of<D>(s.k, span.start, kv_head), s.k.stride, j * kTile, span.length, thread);
    Tile<D>::load(values, head_of<D>(s.v, span.start, kv_head), s.v.stride, j * kTile, span.length, thread);
    wait_for_copies();
    __syncthreads();
    Accumulator<kTile> p, dp;
    clear<kTile>(p);
    clear<kTile>(dp);
    multiply_transposed<D>(
        p,
        [&](unsigned(&a)[4], int kk) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = queries[kk][i];
        },
        keys);
    multiply_transposed<D>(
        dp,
        [&](unsigned(&a)[4], int kk) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = douts[kk][i];
        },
        values);
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp_row + lane / 4 + i / 2 * 8;
        const bool hidden = j == block && n * 8 + lane % 4 * 2 + i % 2 > row;
        const float probability = hidden ? 0.0F : exp2f(p[n][i] * (s.scale * kLog2E) - lse[i / 2]);
        p[n][i] = probability * (dp[n][i] - delta[i / 2]);
      }
    }
    multiply<D>(dq, p, keys);
  }
  const float scale[2] = {s.scale, s.scale};
  store<D>(dq, scale, head_of_mutable<D>(s.dq, span.start, head), s.dq.stride, first + warp_row, span.length);
}

// One block: kTile keys of one KV head; two teams of four warps share its query heads. dK and dV.
template <int D>
__global__ void __launch_bounds__(2 * kThreads) short_attention_dkv(ShortAttention s) {
  extern __shared__ bf16 shared[];
  __shared__ float row_lse[2][kTile], row_delta[2][kTile];
  const Span span(s.cu_seqlens, blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int block = static_cast<int>(blockIdx.x);
  const int first = block * kTile;
  if (first >= span.length) return;
  const int team = static_cast<int>(threadIdx.x) / kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int warp_row = thread / 32 * kWarpRows;
  const int lane = thread % 32;
  bf16* keys = shared;
  bf16* values = shared + Tile<D>::kElements;
  bf16* queries = shared + (2 + 2 * team) * Tile<D>::kElements;
  bf16* douts = queries + Tile<D>::kElements;
  const auto team_sync = [&] { asm volatile("bar.sync %0, 128;\n" ::"r"(team + 1) : "memory"); };

  if (team == 0)
    Tile<D>::load(keys, head_of<D>(s.k, span.start, kv_head), s.k.stride, first, span.length, thread);
  if (team == 1)
    Tile<D>::load(values, head_of<D>(s.v, span.start, kv_head), s.v.stride, first, span.length, thread);
  wait_for_copies();
  __syncthreads();

  Accumulator<D> dk, dv;
  clear<D>(dk);
  clear<D>(dv);
  const int blocks = (span.length + kTile - 1) / kTile;
  for (int member = team; member < s.group; member += 2) {
    const int head = kv_head * s.group + member;
    for (int i = block; i < blocks; ++i) {
      team_sync();
      Tile<D>::load(queries, head_of<D>(s.q, span.start, head), s.q.stride, i * kTile, span.length, thread);
      Tile<D>::load(douts, head_of<D>(s.dout, span.start, head), s.dout.stride, i * kTile, span.length,
                    thread);
      if (thread < kTile) {
        const bool exists = i * kTile + thread < span.length;
        const std::int64_t at = head * s.tokens + span.start + i * kTile + thread;
        row_lse[team][thread] = exists ? s.lse[at] * kLog2E : 0.0F;
        row_delta[team][thread] = exists ? s.delta[at] : 0.0F;
      }
      wait_for_copies();
      team_sync();
      Accumulator<kTile> p, dp;  // [keys, queries]
      clear<kTile>(p);
      multiply_transposed<D>(
          p, [&](unsigned(&a)[4], int kk) { load_a<D>(a, keys, warp_row, kk * 16); }, queries);
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = warp_row + lane / 4 + e / 2 * 8;
          const int query = n * 8 + lane % 4 * 2 + e % 2;
          p[n][e] =
              i == block && key > query ? 0.0F : exp2f(p[n][e] * (s.scale * kLog2E) - row_lse[team][query]);
        }
      }
      multiply<D>(dv, p, douts);
      clear<kTile>(dp);
      multiply_transposed<D>(
          dp, [&](unsigned(&a)[4], int kk) { load_a<D>(a, values, warp_row, kk * 16); }, douts);
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) p[n][e] *= dp[n][e] - row_delta[team][n * 8 + lane % 4 * 2 + e % 2];
      }
      multiply<D>(dk, p, queries);
    }
  }

  // The second team hands its sums to the first through the memory of the query tiles.
  __syncthreads();
  float* exchange = reinterpret_cast<float*>(shared + 2 * Tile<D>::kElements);
  constexpr int kSums = D / 8 * 4;
  if (team == 1) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        exchange[(n * 4 + e) * kThreads + thread] = dk[n][e];
        exchange[(kSums + n * 4 + e) * kThreads + thread] = dv[n][e];
      }
    }
  }
  __syncthreads();
  if (team == 1) return;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      dk[n][e] += exchange[(n * 4 + e) * kThreads + thread];
      dv[n][e] += exchange[(kSums + n * 4 + e) * kThreads + thread];
    }
  }
  const float scale[2] = {s.scale, s.scale};
  const float one[2] = {1.0F, 1.0F};
  store<D>(dk, scale, head_of_mutable<D>(s.dk, span.start, kv_head), s.dk.stride, first + warp_row,
           span.length);
  store<D>(dv, one, head_of_mutable<D>(s.dv, span.start, kv_head), s.dv.stride, first + warp_row,
           span.length);
}

bool rows_fit(const HeadRows& x) {
  return aligned(x.data, 16) && x.stride % 8 == 0;
}

template <class Kernel>
void launch(Kernel* kernel, dim3 grid, int threads, int tiles, std::int64_t head_dim, const ShortAttention& s,
            cudaStream_t stream) {
  const auto bytes = static_cast<int>(tiles * kTile * head_dim * 2);
  RT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<std::size_t>(bytes), stream>>>(s);
  RT_CUDA_CHECK(cudaGetLastError());
}

dim3 grid_of(const ShortAttention& s, std::int64_t heads) {
  return {blocks_for(s.max_seqlen, kTile), static_cast<unsigned>(heads), static_cast<unsigned>(s.sequences)};
}

}  // namespace

bool short_attention_takes(const ShortAttention& s, std::int64_t head_dim) {
  return (head_dim == 64 || head_dim == 128) && s.max_seqlen <= kLongestShortSequence &&
         s.sequences <= 65535 && rows_fit(s.q) && rows_fit(s.k) && rows_fit(s.v) && rows_fit(s.out) &&
         rows_fit(s.dout) && rows_fit(s.dq) && rows_fit(s.dk) && rows_fit(s.dv);
}

void short_attention_forward(const ShortAttention& s, std::int64_t head_dim, cudaStream_t stream) {
  const dim3 grid = grid_of(s, s.heads);
  head_dim == 64 ? launch(short_attention_out<64>, grid, kThreads, 2, 64, s, stream)
                 : launch(short_attention_out<128>, grid, kThreads, 2, 128, s, stream);
}

void short_attention_backward(const ShortAttention& s, std::int64_t head_dim, cudaStream_t stream) {
  const dim3 queries = grid_of(s, s.heads);
  const dim3 keys = grid_of(s, s.heads / s.group);
  if (head_dim == 64) {
    launch(short_attention_dq<64>, queries, kThreads, 2, 64, s, stream);
    launch(short_attention_dkv<64>, keys, 2 * kThreads, 6, 64, s, stream);
  } else {
    launch(short_attention_dq<128>, queries, kThreads, 2, 128, s, stream);
    launch(short_attention_dkv<128>, keys, 2 * kThreads, 6, 128, s, stream);
  }
}

}  // namespace ranktune::kernels::cuda
