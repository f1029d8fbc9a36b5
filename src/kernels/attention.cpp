// Causal attention over sequences laid end to end: checks, and the choice of the path.
#include "kernels/attention.hpp"

#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

AttentionShape check_arguments(const Tensor& q, const Tensor& k, const Tensor& v, const Sequences& sequences,
                               double scale, std::int64_t window, const Tensor& out, const Tensor& lse) {
  activation_type(q, "q");
  check_tensor(q.dim() == 3, "q", q, "[tokens, heads, head_dim]");
  check_tensor(k.dim() == 3, "k", k, "[tokens, kv_heads, head_dim]");
  const AttentionShape shape{q.size(0), q.size(1), k.size(1), q.size(2), scale, window};
  RT_CHECK(window >= 0, "attention window " + std::to_string(window));
  RT_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
           std::to_string(shape.heads) + " heads do not divide among " + std::to_string(shape.kv_heads) +
               " KV heads");
  check_sizes(q, "q", {shape.tokens, shape.heads, shape.head_dim});
  check_sizes(k, "k", {shape.tokens, shape.kv_heads, shape.head_dim});
  check_sizes(v, "v", {shape.tokens, shape.kv_heads, shape.head_dim});
  check_like(k, "k", q);
  check_like(v, "v", q);
  rows_of(out, "out", shape.tokens, shape.heads * shape.head_dim);
  check_like(out, "out", q);
  check_vector(lse, "lse", at::kFloat, shape.heads * shape.tokens);
  check_sizes(lse, "lse", {shape.heads, shape.tokens});
  check_device(lse, "lse", q);
  RT_CHECK(sequences.host != nullptr && !sequences.host->empty(), "attention needs cu_seqlens on the host");
  RT_CHECK(sequences.host->front() == 0 && sequences.host->back() == shape.tokens,
           "cu_seqlens runs from " + std::to_string(sequences.host->front()) + " to " +
               std::to_string(sequences.host->back()) + ", wanted 0 to " + std::to_string(shape.tokens));
  return shape;
}

}  // namespace

void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Sequences& sequences,
                       double scale, std::int64_t window, Tensor& out, Tensor& lse) {
  const AttentionShape shape = check_arguments(q, k, v, sequences, scale, window, out, lse);
  if (q.is_cpu()) {
    attention_forward_cpu(shape, q, k, v, sequences, out, lse);
    return;
  }
  const CudaScope scope(q);
  if (q.scalar_type() == at::kBFloat16) {
    attention_forward_flash(shape, q, k, v, sequences, out, lse);
  } else {
    attention_forward_aten(shape, q, k, v, sequences, out, lse);
  }
}

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const Sequences& sequences, double scale,
                        std::int64_t window, Tensor& dq, Tensor& dk, Tensor& dv) {
  const AttentionShape shape = check_arguments(q, k, v, sequences, scale, window, out, lse);
  rows_of(dout, "dout", shape.tokens, shape.heads * shape.head_dim);
  check_sizes(dq, "dq", {shape.tokens, shape.heads, shape.head_dim});
  check_sizes(dk, "dk", {shape.tokens, shape.kv_heads, shape.head_dim});
  check_sizes(dv, "dv", {shape.tokens, shape.kv_heads, shape.head_dim});
  check_like(dout, "dout", q);
  check_like(dq, "dq", q);
  check_like(dk, "dk", q);
  check_like(dv, "dv", q);
  if (q.is_cpu()) {
    attention_backward_cpu(shape, dout, q, k, v, lse, sequences, dq, dk, dv);
    return;
  }
  const CudaScope scope(q);
  if (q.scalar_type() == at::kBFloat16) {
    attention_backward_flash(shape, dout, q, k, v, out, lse, sequences, dq, dk, dv);
  } else {
    attention_backward_aten(shape, dout, q, k, v, sequences, dq, dk, dv);
  }
}

}  // namespace ranktune::kernels
