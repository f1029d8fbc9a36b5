// Causal attention of sequences laid end to end against float64 and its autograd.
#include "kernels/ops.hpp"
#include "support.hpp"

#include <ATen/Parallel.h>

#include <tuple>

#include "base/error.hpp"

namespace ranktune::kernels {
namespace {

struct Case {
  std::vector<std::int32_t> lengths;
  std::int64_t heads, kv_heads, head_dim;
  std::int64_t window = 0;
};

std::vector<std::int32_t> cumulative(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> sums{0};
  for (const std::int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

// out [tokens, heads, head_dim] and lse [heads, tokens].
std::tuple<Tensor, Tensor> reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const std::vector<std::int32_t>& cu_seqlens, double scale,
                                     std::int64_t window) {
  const std::int64_t group = q.size(1) / k.size(1);
  std::vector<Tensor> outs;
  std::vector<Tensor> sums;
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const auto part = [&](const Tensor& x) {
      return x.slice(0, cu_seqlens[s], cu_seqlens[s + 1]).transpose(0, 1);
    };
    const Tensor scores = at::matmul(part(q), part(k).repeat_interleave(group, 0).transpose(1, 2)) * scale;
    const std::int64_t length = scores.size(1);
    const Tensor all = at::ones({length, length}, at::kBool);
    const Tensor hidden = window > 0 ? all.triu(1).logical_or(all.tril(-window)) : all.triu(1);
    const Tensor masked = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    outs.push_back(at::matmul(masked.softmax(-1), part(v).repeat_interleave(group, 0)).transpose(0, 1));
    sums.push_back(masked.logsumexp(-1));
  }
  return {at::cat(outs, 0), at::cat(sums, 1)};
}

class Attention : public KernelTest {
 protected:
  // q, k and v as the slices of a fused projection with LoRA columns behind them.
  struct Inputs {
    Tensor fused, q, k, v;
    std::vector<std::int32_t> host;
    Sequences sequences() const { return {cu_seqlens, &host, longest}; }
    Tensor cu_seqlens;
    std::int64_t longest = 0;
  };

  Tensor heads_view(const Tensor& fused, std::int64_t first, std::int64_t heads, std::int64_t dim) const {
    return fused.as_strided({fused.size(0), heads, dim}, {fused.stride(0), dim, 1},
                            fused.storage_offset() + first);
  }

  Inputs make(const Case& c) const {
    Inputs in;
    in.host = cumulative(c.lengths);
    in.cu_seqlens = ints(in.host);
    for (const std::int32_t length : c.lengths) in.longest = std::max<std::int64_t>(in.longest, length);
    const std::int64_t q_width = c.heads * c.head_dim;
    const std::int64_t kv_width = c.kv_heads * c.head_dim;
    in.fused = random_wide(in.host.back(), q_width + 2 * kv_width, 0, 64);
    in.q = heads_view(in.fused, 0, c.heads, c.head_dim);
    in.k = heads_view(in.fused, q_width, c.kv_heads, c.head_dim);
    in.v = heads_view(in.fused, q_width + kv_width, c.kv_heads, c.head_dim);
    return in;
  }
};
RT_INSTANTIATE(Attention, kPlaces);

TEST_P(Attention, ForwardAndBackward) {
  for (const Case& c :
       {Case{{190, 20, 1, 333}, 9, 3, 64}, Case{{1}, 1, 1, 8}, Case{{70, 257}, 4, 1, 128},
        Case{{129, 2}, 2, 2, 16}, Case{{5, 40}, 32, 4, 32},
        // Around the tiles of 64 of the kernels for short sequences, and beyond the longest that they take.
        Case{{64, 65, 128, 1, 191}, 8, 2, 128}, Case{{512, 63}, 6, 2, 64}, Case{{600, 70}, 4, 2, 128},
        // A window: within a block of rows, over several of them, of two tokens, wider than all.
        Case{{190, 20, 1, 333}, 9, 3, 64, 7}, Case{{70, 257}, 4, 2, 80, 100}, Case{{40, 3}, 2, 1, 16, 2},
        Case{{5, 40}, 32, 4, 32, 64}}) {
    const Inputs in = make(c);
    const std::int64_t tokens = in.host.back();
    const double scale = 1.3 / std::sqrt(static_cast<double>(c.head_dim));
    Tensor out = wide(tokens, c.heads * c.head_dim, 0, 64);
    Tensor lse = poisoned({c.heads, tokens}, at::kFloat);
    attention_forward(in.q, in.k, in.v, in.sequences(), scale, c.window, out, lse);
    const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
    const auto [y, sums] = reference(q, k, v, in.host, scale, c.window);
    EXPECT_LE(relative_error(out, y.reshape({tokens, -1})), tolerance(3e-6, 2))
        << c.head_dim << " " << c.window;
    EXPECT_LE(relative_error(lse, sums), 3e-6) << c.head_dim;
    EXPECT_TRUE(surroundings_untouched(out));

    const Tensor dout = random_wide(tokens, c.heads * c.head_dim, 0, 24);
    y.backward(to_double(dout).view({tokens, c.heads, c.head_dim}));
    Tensor gradient = wide(tokens, in.fused.size(1), 0, 16);
    Tensor dq = heads_view(gradient, 0, c.heads, c.head_dim);
    Tensor dk = heads_view(gradient, c.heads * c.head_dim, c.kv_heads, c.head_dim);
    Tensor dv = heads_view(gradient, (c.heads + c.kv_heads) * c.head_dim, c.kv_heads, c.head_dim);
    attention_backward(dout, in.q, in.k, in.v, out, lse, in.sequences(), scale, c.window, dq, dk, dv);
    EXPECT_LE(relative_error(dq, q.grad(), 0.1), tolerance(5e-6, 4)) << c.head_dim;
    EXPECT_LE(relative_error(dk, k.grad(), 0.1), tolerance(5e-6, 4)) << c.head_dim;
    EXPECT_LE(relative_error(dv, v.grad(), 0.1), tolerance(5e-6, 4)) << c.head_dim;
    EXPECT_TRUE(surroundings_untouched(gradient));
  }
}

TEST_P(Attention, SameInputsSameBits) {
  const int threads = at::get_num_threads();
  for (const Case& c : {Case{{301, 40, 77, 9}, 6, 2, 64}, Case{{301, 40, 77, 9}, 6, 2, 64, 50}}) {
    const Inputs in = make(c);
    const std::int64_t tokens = in.host.back();
    const Tensor dout = random({tokens, 6 * 64});
    std::vector<Tensor> first;
    for (const int count : {1, 2, 3}) {
      at::set_num_threads(count);
      Tensor out = poisoned({tokens, 6 * 64});
      Tensor lse = poisoned({6, tokens}, at::kFloat);
      attention_forward(in.q, in.k, in.v, in.sequences(), 0.125, c.window, out, lse);
      Tensor dq = poisoned({tokens, 6, 64}), dk = poisoned({tokens, 2, 64}), dv = poisoned({tokens, 2, 64});
      attention_backward(dout, in.q, in.k, in.v, out, lse, in.sequences(), 0.125, c.window, dq, dk, dv);
      const std::vector<Tensor> all{out, lse, dq, dk, dv};
      if (first.empty()) first = all;
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(same_bits(all[i], first[i])) << count << " " << i << " " << c.window;
    }
  }
  at::set_num_threads(threads);
}

// What stands behind a sequence, or in another, has no influence.
TEST_P(Attention, SequencesAreSeparate) {
  const Inputs both = make({{33, 50}, 4, 2, 64});
  Tensor out = poisoned({83, 256});
  Tensor lse = poisoned({4, 83}, at::kFloat);
  attention_forward(both.q, both.k, both.v, both.sequences(), 0.125, 0, out, lse);
  const std::vector<std::int32_t> host{0, 33};
  const Sequences one{ints(host), &host, 33};
  Tensor first = poisoned({33, 256});
  Tensor first_lse = poisoned({4, 33}, at::kFloat);
  attention_forward(both.q.slice(0, 0, 33), both.k.slice(0, 0, 33), both.v.slice(0, 0, 33), one, 0.125, 0,
                    first, first_lse);
  EXPECT_LE(relative_error(out.slice(0, 0, 33), first), tolerance(1e-6));
}

TEST_P(Attention, WhatDoesNotFitIsNamed) {
  Inputs in = make({{10}, 4, 2, 64});
  Tensor out = poisoned({10, 256});
  Tensor lse = poisoned({4, 10}, at::kFloat);
  in.host.back() = 9;
  EXPECT_THROW(attention_forward(in.q, in.k, in.v, in.sequences(), 1, 0, out, lse), Failure);
  const Inputs fit = make({{10}, 4, 2, 64});
  const Sequences no_host{fit.cu_seqlens, nullptr, 10};
  EXPECT_THROW(attention_forward(fit.q, fit.k, fit.v, no_host, 1, 0, out, lse), Failure);
  EXPECT_THROW(attention_forward(fit.q.slice(1, 0, 3), fit.k, fit.v, fit.sequences(), 1, 0, out, lse),
               Failure);
}

}  // namespace
}  // namespace ranktune::kernels
