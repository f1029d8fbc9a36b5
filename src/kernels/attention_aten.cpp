// Attention on CUDA in fp32: simple and deterministic, on ATen's batched products, per sequence and block of
// query rows so that the scores stay within a fixed size. For checking against the CPU and for small runs;
// bf16 takes flash attention. Bound: launches, about 10 per block.
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "kernels/attention.hpp"

namespace ranktune::kernels {
namespace {

constexpr std::int64_t kMostScores = 1 << 26;  // elements of one block's score matrix: 256 MiB

struct Block {
  std::int64_t start;   // first token of the sequence
  std::int64_t length;  // of the sequence
  std::int64_t first;   // query row in the sequence
  std::int64_t rows;
  std::int64_t first_key;  // in the sequence; the last one is that of the last query row
  std::int64_t end_key() const { return first + rows; }
  std::int64_t keys() const { return end_key() - first_key; }
};

std::vector<Block> make_blocks(const AttentionShape& shape, const std::vector<std::int32_t>& cu_seqlens) {
  std::vector<Block> blocks;
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const std::int64_t length = cu_seqlens[s + 1] - cu_seqlens[s];
    const std::int64_t rows =
        std::max<std::int64_t>(1, kMostScores / std::max<std::int64_t>(1, shape.heads * length));
    for (std::int64_t first = 0; first < length; first += rows) {
      blocks.push_back(
          {cu_seqlens[s], length, first, std::min(rows, length - first), shape.first_key(first)});
    }
  }
  return blocks;
}

// [tokens, heads, dim] -> [kv_heads, group * tokens, dim], the query heads of a group one after the other.
Tensor grouped(const Tensor& x, const AttentionShape& shape) {
  return x.reshape({x.size(0), shape.kv_heads, shape.group(), shape.head_dim})
      .permute({1, 2, 0, 3})
      .reshape({shape.kv_heads, shape.group() * x.size(0), shape.head_dim});
}

Tensor ungrouped(const Tensor& x, const AttentionShape& shape, std::int64_t tokens) {
  return x.reshape({shape.kv_heads, shape.group(), tokens, shape.head_dim})
      .permute({2, 0, 1, 3})
      .reshape({tokens, shape.heads, shape.head_dim});
}

Tensor queries(const Tensor& x, const Block& block) {
  return x.slice(0, block.start + block.first, block.start + block.first + block.rows);
}

// [kv_heads, keys, dim] of the keys that the block sees.
Tensor keys(const Tensor& x, const Block& block) {
  return x.slice(0, block.start + block.first_key, block.start + block.end_key())
      .transpose(0, 1)
      .contiguous();
}

// q k^T with what each query row does not see at -infinity, [kv_heads, group * rows, keys].
Tensor masked_scores(const Tensor& q, const Tensor& k, const AttentionShape& shape, const Block& block) {
  Tensor scores = at::bmm(q, k.transpose(1, 2));
  const Tensor all = at::ones({block.rows, block.keys()}, scores.options().dtype(at::kBool));
  const std::int64_t diagonal = block.first - block.first_key;  // column of the first row's own token
  Tensor hidden = all.triu(diagonal + 1);
  if (shape.window > 0) hidden.logical_or_(all.tril(diagonal - shape.window));
  scores.view({shape.heads, block.rows, block.keys()})
      .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  return scores;
}

}  // namespace

void attention_forward_aten(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Sequences& sequences, Tensor& out, Tensor& lse) {
  for (const Block& block : make_blocks(shape, *sequences.host)) {
    const std::int64_t token = block.start + block.first;
    const Tensor scores =
        masked_scores(grouped(queries(q, block), shape).mul(shape.scale), keys(k, block), shape, block);
    const Tensor sums = scores.logsumexp(-1, true);
    const Tensor product = at::bmm(scores.sub(sums).exp_(), keys(v, block));
    queries(out, block).copy_(ungrouped(product, shape, block.rows).reshape({block.rows, -1}));
    lse.slice(1, token, token + block.rows).copy_(sums.view({shape.heads, block.rows}));
  }
}

void attention_backward_aten(const AttentionShape& shape, const Tensor& dout, const Tensor& q,
                             const Tensor& k, const Tensor& v, const Sequences& sequences, Tensor& dq,
                             Tensor& dk, Tensor& dv) {
  Tensor dk_sum, dv_sum;
  for (const Block& block : make_blocks(shape, *sequences.host)) {
    if (block.first == 0) {
      dk_sum = at::zeros({shape.kv_heads, block.length, shape.head_dim}, q.options());
      dv_sum = at::zeros(dk_sum.sizes(), q.options());
    }
    const Tensor scaled_q = grouped(queries(q, block), shape).mul(shape.scale);
    const Tensor d = grouped(queries(dout, block), shape);
    const Tensor k_block = keys(k, block);
    // Not from lse and out: their rounding is one error of a whole row, see attention_cpu.cpp.
    const Tensor p = masked_scores(scaled_q, k_block, shape, block).softmax(-1);
    Tensor ds = at::bmm(d, keys(v, block).transpose(1, 2));
    ds.sub_(p.mul(ds).sum(-1, true)).mul_(p);
    dv_sum.slice(1, block.first_key, block.end_key()).add_(at::bmm(p.transpose(1, 2), d));
    dk_sum.slice(1, block.first_key, block.end_key()).add_(at::bmm(ds.transpose(1, 2), scaled_q));
    queries(dq, block).copy_(ungrouped(at::bmm(ds, k_block).mul_(shape.scale), shape, block.rows));
    if (block.end_key() == block.length) {
      dk.slice(0, block.start, block.start + block.length).copy_(dk_sum.transpose(0, 1));
      dv.slice(0, block.start, block.start + block.length).copy_(dv_sum.transpose(0, 1));
    }
  }
}

}  // namespace ranktune::kernels
