// Attention on CUDA in bf16: ATen's flash attention (Dao 2023) with variable lengths and grouped KV heads.
// Bound: FLOP, 2 * heads * head_dim * L^2 per sequence forward, 5/2 of it backward; for short sequences,
// launches.
#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "kernels/attention.hpp"
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

}  // namespace

void attention_forward_flash(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Sequences& sequences, Tensor& out, Tensor& lse) {
  check_flash(shape, sequences, q);
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
