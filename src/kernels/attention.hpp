// The paths that attention.cpp chooses between. Arguments are checked already.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops.hpp"

namespace ranktune::kernels {

struct AttentionShape {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  std::int64_t window = 0;
  std::int64_t group() const { return heads / kv_heads; }  // query heads of a KV head
  // First token of its sequence that token i of it sees.
  std::int64_t first_key(std::int64_t i) const {
    return window > 0 ? std::max<std::int64_t>(0, i - window + 1) : 0;
  }
};

void attention_forward_cpu(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Sequences& sequences, Tensor& out, Tensor& lse);
void attention_backward_cpu(const AttentionShape& shape, const Tensor& dout, const Tensor& q, const Tensor& k,
                            const Tensor& v, const Tensor& lse, const Sequences& sequences, Tensor& dq,
                            Tensor& dk, Tensor& dv);

void attention_forward_aten(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Sequences& sequences, Tensor& out, Tensor& lse);
void attention_backward_aten(const AttentionShape& shape, const Tensor& dout, const Tensor& q,
                             const Tensor& k, const Tensor& v, const Sequences& sequences, Tensor& dq,
                             Tensor& dk, Tensor& dv);

void attention_forward_flash(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Sequences& sequences, Tensor& out, Tensor& lse);
void attention_backward_flash(const AttentionShape& shape, const Tensor& dout, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                              const Sequences& sequences, Tensor& dq, Tensor& dk, Tensor& dv);

}  // namespace ranktune::kernels
