// Attention on CUDA in bf16: our kernels for short sequences, ATen's flash attention (Dao 2023) for all
// others, both with variable lengths and grouped KV heads. Bound: FLOP, 2 * heads * head_dim * L^2 per
// sequence forward, 5/2 of it backward; for short sequences, launches.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>

#include "kernels/attention.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

// ATen's backward adds up dQ with atomics unless the global deterministic flag is set: it is, as long as this
// lives. Filling of uninitialised memory, which the flag would bring along, is off.
class DeterministicScope {
 public:
  DeterministicScope()
      : algorithms_(at::globalContext().deterministicAlgorithms()),
        warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        fill_(at::globalContext().deterministicFillUninitializedMemory()) {
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~DeterministicScope() {
    at::globalContext().setDeterministicAlgorithms(algorithms_, warn_only_);
    at::globalContext().setDeterministicFillUninitializedMemory(fill_);
  }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  bool algorithms_, warn_only_, fill_;
};

void check_flash(const AttentionShape& shape, const Sequences& sequences, const Tensor& q) {
  RT_CHECK(
      shape.head_dim % 8 == 0 && shape.head_dim <= 256,
      "bfloat16 attention on CUDA takes head dimensions that are multiples of 8 up to 256; this model's is " +
          std::to_string(shape.head_dim) + ": use float32");
  check_vector(sequences.cu_seqlens, "cu_seqlens", at::kInt,
               static_cast<std::int64_t>(sequences.host->size()));
  check_device(sequences.cu_seqlens, "cu_seqlens", q);
  RT_CHECK(sequences.max_seqlen > 0, "attention needs the longest sequence's length");
}

// How many tokens before its own one a token sees; none: all.
std::optional<std::int64_t> tokens_before(const AttentionShape& shape) {
  return shape.window > 0 ? std::optional(shape.window - 1) : std::nullopt;
}

Tensor heads_of(const Tensor& rows, const AttentionShape& shape) {
  return rows.as_strided({shape.tokens, shape.heads, shape.head_dim}, {rows.stride(0), shape.head_dim, 1},
                         rows.storage_offset());
}

cuda::HeadRows head_rows(const Tensor& x) {
  return {x.data_ptr(), x.stride(0)};
}

// The part that both directions share.
cuda::ShortAttention short_attention(const AttentionShape& shape, const Sequences& sequences, const Tensor& q,
                                     const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse) {
  cuda::ShortAttention s;
  s.q = head_rows(q);
  s.k = head_rows(k);
  s.v = head_rows(v);
  s.out = head_rows(out);
  s.lse = static_cast<float*>(lse.data_ptr());
  s.cu_seqlens = sequences.cu_seqlens.const_data_ptr<std::int32_t>();
  s.sequences = sequences.cu_seqlens.numel() - 1;
  s.max_seqlen = sequences.max_seqlen;
  s.tokens = shape.tokens;
  s.heads = static_cast<int>(shape.heads);
  s.group = static_cast<int>(shape.group());
  s.scale = static_cast<float>(shape.scale);
  return s;
}

// Whether a window would hide anything.
bool sees_all(const AttentionShape& shape, const Sequences& sequences) {
  return shape.window == 0 || shape.window >= sequences.max_seqlen;
}

}  // namespace

void attention_forward_flash(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Sequences& sequences, Tensor& out, Tensor& lse) {
  check_flash(shape, sequences, q);
  const cuda::ShortAttention s = short_attention(shape, sequences, q, k, v, out, lse);
  if (sees_all(shape, sequences) && cuda::short_attention_takes(s, shape.head_dim)) {
    cuda::short_attention_forward(s, shape.head_dim, at::cuda::getCurrentCUDAStream());
    return;
  }
  const auto result = at::_flash_attention_forward(
      q, k, v, sequences.cu_seqlens, sequences.cu_seqlens, sequences.max_seqlen, sequences.max_seqlen, 0.0,
      /*is_causal=*/true, false, shape.scale, tokens_before(shape));
  heads_of(out, shape).copy_(std::get<0>(result));
  const Tensor& sums = std::get<1>(result);
  check_sizes(sums, "the flash attention's logsumexp", {shape.heads, shape.tokens});
  lse.copy_(sums);
}

void attention_backward_flash(const AttentionShape& shape, const Tensor& dout, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                              const Sequences& sequences, Tensor& dq, Tensor& dk, Tensor& dv) {
  check_flash(shape, sequences, q);
  cuda::ShortAttention s = short_attention(shape, sequences, q, k, v, out, lse);
  s.dout = head_rows(dout);
  s.dq = head_rows(dq);
  s.dk = head_rows(dk);
  s.dv = head_rows(dv);
  if (sees_all(shape, sequences) && cuda::short_attention_takes(s, shape.head_dim)) {
    const Tensor delta = at::empty_like(lse);
    s.delta = static_cast<float*>(delta.data_ptr());
    cuda::short_attention_backward(s, shape.head_dim, at::cuda::getCurrentCUDAStream());
    return;
  }
  const DeterministicScope deterministic;
  // Without dropout the generator's state is not read.
  const Tensor no_state = at::empty({2}, q.options().dtype(at::kUInt64));
  const Tensor unused = at::empty({}, q.options().dtype(at::kUInt64));
  const auto result = at::_flash_attention_backward(
      heads_of(dout, shape), q, k, v, heads_of(out, shape), lse, sequences.cu_seqlens, sequences.cu_seqlens,
      sequences.max_seqlen, sequences.max_seqlen, 0.0, /*is_causal=*/true, no_state, unused, shape.scale,
      tokens_before(shape));
  dq.copy_(std::get<0>(result));
  dk.copy_(std::get<1>(result));
  dv.copy_(std::get<2>(result));
}

}  // namespace ranktune::kernels
