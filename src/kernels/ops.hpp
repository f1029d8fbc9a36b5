// Every fused operation of a step, once: shapes, meaning, and which device does what.
//
// Each works on CPU tensors (fp32: the reference, on ATen or plain loops) and on CUDA tensors (fp32 or bf16,
// our own kernels unless said otherwise); which one is chosen by where the first tensor lies. CUDA work goes
// to the current stream, allocates nothing and reads nothing back, unless said otherwise, so that a step can
// be captured in a graph. "Rows" may be strided (row stride >= row length, last dimension contiguous): the
// wide layout keeps LoRA columns beside the activations. Statistics, softmax and loss are fp32; no float
// atomics: same inputs, same bits. All ops throw ranktune::Failure on shapes or types that do not fit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/step_layout.hpp"  // TailSlot, OutcomeSlot, AdamW

namespace ranktune::kernels {

using at::Tensor;

// out[t, :] = weight[ids[t], :]. ids int32 [T], weight [V, H], out [T, H].
void embedding_forward(const Tensor& ids, const Tensor& weight, Tensor& out);

// residual_out = residual_in + delta (delta undefined: residual_out is not written and may be undefined);
// out = residual / sqrt(mean(residual^2) + eps) * weight; rstd fp32 [T] keeps the factor.
// residual_* and delta [T, H], weight [H], out rows [T, H]. residual_out may be residual_in.
// Rounding as Transformers: the normalised value is rounded to the storage type before the product with
// weight.
void add_rms_norm_forward(const Tensor& residual_in, const Tensor& delta, Tensor& residual_out,
                          const Tensor& weight, double eps, Tensor& out, Tensor& rstd);

// dresidual += d(norm)/d(residual) applied to dout. residual [T, H] as it was normalised, dout rows [T, H].
void rms_norm_backward(const Tensor& dout, const Tensor& residual, const Tensor& weight, const Tensor& rstd,
                       Tensor& dresidual);

// Rotary embedding, rotate-half form as in Transformers, of every head of q and k, after an RMSNorm over each
// head where q_weight and k_weight [head_dim] are defined (Qwen3). qk_in, qk_out: rows [T, (heads + kv_heads)
// * head_dim], q heads first; qk_out may be qk_in only without norms. cosines, sines fp32 [positions,
// head_dim / 2]; positions int32 [T]; rstd fp32 [T, heads + kv_heads] (with norms).
struct HeadShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};
void qk_norm_rope_forward(const Tensor& qk_in, Tensor& qk_out, const Tensor& q_weight, const Tensor& k_weight,
                          double eps, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
                          const HeadShape& shape, Tensor& rstd);
// dqk rows [T, (heads + kv_heads) * head_dim]: gradient of qk_out on entry, of qk_in on return. qk_in is the
// input of the forward pass (not read without norms).
void qk_norm_rope_backward(Tensor& dqk, const Tensor& qk_in, const Tensor& q_weight, const Tensor& k_weight,
                           const Tensor& cosines, const Tensor& sines, const Tensor& positions,
                           const HeadShape& shape, const Tensor& rstd);

// Causal attention within each sequence; query head h uses KV head h / (heads / kv_heads). window > 0: token
// i sees the tokens j with i - window < j <= i only, as in Transformers; 0: all up to i. q [T, heads, D], k
// and v [T, kv_heads, D] (views with any row stride, last two dims contiguous), out rows [T, heads * D], lse
// fp32 [heads, T] (natural log of the softmax sum). cu_seqlens int32 [S + 1] on the device and on the host.
// CUDA bf16: ATen's flash attention (allocates through the caching allocator). CPU and CUDA fp32: our own,
// per sequence.
struct Sequences {
  Tensor cu_seqlens;  // device copy
  const std::vector<std::int32_t>* host = nullptr;
  std::int64_t max_seqlen = 0;
};
void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Sequences& sequences,
                       double scale, std::int64_t window, Tensor& out, Tensor& lse);
// dq, dk, dv like q, k, v (views may be strided), written. Deterministic.
void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const Sequences& sequences, double scale,
                        std::int64_t window, Tensor& dq, Tensor& dk, Tensor& dv);

// gate_up rows [T, 2 * I] (gate first), out rows [T, I] = silu(gate) * up.
void swiglu_forward(const Tensor& gate_up, Tensor& out);
// dgate_up rows [T, 2 * I] written; may be gate_up itself. dout rows [T, I]. out rows [T, I], where defined:
// the forward result is written again, so that it need not be kept.
void swiglu_backward(const Tensor& dout, const Tensor& gate_up, Tensor& dgate_up, Tensor& out);

// Cross-entropy of each row against its target, in place: logits [N, V] becomes the gradient of the SUM of
// the rows' negative log-likelihoods (softmax - onehot; zero where target is -1). nll_sum fp64 [1] += that
// sum (nats). targets int32 [N]. nll_rows fp32 [N] is scratch/out: the NLL of each row (0 where no target).
void cross_entropy_in_place(Tensor& logits, const Tensor& targets, Tensor& nll_rows, Tensor& nll_sum);

// Inverted dropout of A's input: out = x * keep / (1 - p), where keep is drawn from Philox keyed by (seed,
// dropout, stream) at a counter made of (step, sample, position in the sample, channel), so a mask depends on
// nothing else. Applied to the same arguments on a gradient it is its own backward. x, out rows [T, H]. step
// int64 [1] on the device; sample_of_token int64 [T]; positions int32 [T]; stream = layer * 16 + projection.
struct DropoutKey {
  double p = 0;
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;
};
void dropout(const Tensor& x, const DropoutKey& key, const Tensor& step, const Tensor& sample_of_token,
             const Tensor& positions, Tensor& out);

// ---- optimizer over flat fp32 buffers ----

// nonfinite slot of this rank: tail[tail_nonfinite + rank] = 1 if any of gradient [N] or nll is not finite,
// else 0; tail_nll, tail_targets, tail_stop, tail_tokens set from the arguments. nll_sum fp64 [1]. Before the
// all-reduce.
void fill_tail(const Tensor& gradient, const Tensor& nll_sum, double targets, double stop, double tokens,
               std::int64_t rank, Tensor& tail);

// After the all-reduce: loss = nll / targets, norm of gradient / targets (fp64 accumulation in fixed blocks),
// multiplier = min(1, max_norm / (norm + 1e-6)) / targets (max_norm <= 0: no clipping) as torch's
// clip_grad_norm_. tail fp32 [4 + world_size]; outcome fp32 [8] on the same device, its sticky slot read and
// written. scratch fp64 [at least 1024].
void finish_reduction(const Tensor& gradient, const Tensor& tail, double max_norm, Tensor& scratch,
                      Tensor& outcome);

// AdamW (Loshchilov and Hutter 2019) as torch.optim.AdamW computes it, decoupled weight decay, in place; does
// nothing where outcome[outcome_bad] is not 0. hyper fp32 [3] on the device: learning rate, 1 - beta1^t, 1 -
// beta2^t.
void adamw_step(const AdamW& settings, const Tensor& hyper, const Tensor& outcome, const Tensor& gradient,
                Tensor& master, Tensor& exp_avg, Tensor& exp_avg_sq);

// A segment of the flat master copied to where GEMMs read it: rows x cols from `offset`, to a strided 2-d
// view (fp32 or bf16).
struct Segment {
  std::int64_t offset = 0;
  Tensor destination;  // [rows, cols], last dimension contiguous
};
// Holds the segment table on the device; destinations must outlive it.
class SegmentScatter {
 public:
  explicit SegmentScatter(std::vector<Segment> segments);
  void operator()(const Tensor& master) const;  // destination = master, rounded to its type

 private:
  std::vector<Segment> segments_;
  Tensor table_;  // CUDA only: int64 [segments, 6]: offset, rows, cols, address, row stride, type
  std::int64_t elements_ = 0;
};

}  // namespace ranktune::kernels
