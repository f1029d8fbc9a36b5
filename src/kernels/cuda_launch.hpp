// The CUDA kernels' entry points, one .cu file each, free of LibTorch so that they compile quickly. Arguments
// are those of ops.hpp, checked there; pointers are device memory; work goes to `stream`. They throw Failure
// when a launch fails.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/types.hpp"

namespace ranktune::kernels {
struct AdamW;
struct DropoutMask;
}  // namespace ranktune::kernels

namespace ranktune::kernels::cuda {

// An id outside the table gives a row of NaN.
void embedding_forward(Type type, const std::int32_t* ids, const DeviceRows& weight, const DeviceRows& out,
                       cudaStream_t stream);

// delta.data null: nothing is added and residual_out not written.
void add_rms_norm_forward(Type type, const DeviceRows& residual_in, const DeviceRows& delta,
                          const DeviceRows& residual_out, const void* weight, float eps,
                          const DeviceRows& out, float* rstd, cudaStream_t stream);
void rms_norm_backward(Type type, const DeviceRows& dout, const DeviceRows& residual, const void* weight,
                       const float* rstd, const DeviceRows& dresidual, cudaStream_t stream);

struct RotaryArguments {
  const void* q_weight;  // null: no norms
  const void* k_weight;
  float eps;
  const float* cosines;
  const float* sines;
  const std::int32_t* positions;
  std::int64_t table;  // positions in cosines and sines; outside of it the result is NaN
  std::int64_t heads, kv_heads, head_dim;
  float* rstd;
};
void qk_norm_rope_forward(Type type, const DeviceRows& in, const DeviceRows& out,
                          const RotaryArguments& rotary, cudaStream_t stream);
void qk_norm_rope_backward(Type type, const DeviceRows& dqk, const DeviceRows& in,
                           const RotaryArguments& rotary, cudaStream_t stream);

void swiglu_forward(Type type, const DeviceRows& gate_up, const DeviceRows& out, cudaStream_t stream);
void swiglu_backward(Type type, const DeviceRows& dout, const DeviceRows& gate_up, const DeviceRows& dgate_up,
                     const DeviceRows& out, cudaStream_t stream);

// Heads side by side in rows `stride` elements apart.
struct HeadRows {
  void* data = nullptr;
  std::int64_t stride = 0;
};
// Attention of short sequences in bf16; the gradients' members are for the backward pass only.
struct ShortAttention {
  HeadRows q, k, v, out, dout, dq, dk, dv;
  float* lse = nullptr;    // [heads, tokens]
  float* delta = nullptr;  // [heads, tokens], written and read by the backward pass
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen = 0;
  std::int64_t tokens = 0;
  int heads = 0;
  int group = 1;  // query heads of a KV head
  float scale = 1;
};
// Up to here the kernels are faster than the general ones; longer sequences gain from those' larger tiles.
inline constexpr std::int64_t kLongestShortSequence = 512;
bool short_attention_takes(const ShortAttention& attention, std::int64_t head_dim);
void short_attention_forward(const ShortAttention& attention, std::int64_t head_dim, cudaStream_t stream);
void short_attention_backward(const ShortAttention& attention, std::int64_t head_dim, cudaStream_t stream);

// A target outside the vocabulary gives NaN.
void cross_entropy_in_place(Type type, const DeviceRows& logits, const std::int32_t* targets, float* nll_rows,
                            double* nll_sum, cudaStream_t stream);

void dropout(Type type, const DeviceRows& x, const DropoutMask& mask, const std::int64_t* step,
             const std::int64_t* sample_of_token, const std::int32_t* positions, const DeviceRows& out,
             cudaStream_t stream);

struct TailValues {
  float targets, stop, tokens;
  std::int64_t rank;
};
void fill_tail(const float* gradient, std::int64_t count, const double* nll_sum, const TailValues& values,
               float* tail, std::int64_t slots, cudaStream_t stream);
void finish_reduction(const float* gradient, std::int64_t count, const float* tail, std::int64_t slots,
                      double max_norm, double* scratch, float* outcome, cudaStream_t stream);
void adamw_step(const AdamW& settings, const float* hyper, const float* outcome, const float* gradient,
                float* master, float* exp_avg, float* exp_avg_sq, std::int64_t count, cudaStream_t stream);

// table int64 [segments, scatter_columns].
enum ScatterColumn : std::int64_t {
  scatter_offset,
  scatter_rows,
  scatter_cols,
  scatter_address,
  scatter_stride,
  scatter_type,
  scatter_columns
};
void segment_scatter(const std::int64_t* table, std::int64_t segments, const float* master,
                     cudaStream_t stream);

void dummy_normal(Type type, const DeviceRows& weight, float scale, std::uint64_t seed,
                  std::uint32_t random_stream, cudaStream_t stream);

}  // namespace ranktune::kernels::cuda
