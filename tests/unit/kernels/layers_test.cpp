// Embedding, RMSNorm, rotary embedding and SwiGLU against float64 and its autograd.
#include "kernels/ops.hpp"
#include "support.hpp"

#include "base/error.hpp"

namespace ranktune::kernels {
namespace {

class Layers : public KernelTest {};
RT_INSTANTIATE(Layers, kPlaces);

TEST_P(Layers, EmbeddingCopiesRows) {
  for (const std::int64_t width : {1, 7, 64, 576}) {
    const Tensor weight = random({11, width});
    const Tensor ids = ints({3, 0, 10, 3, 9});
    Tensor out = wide(5, width);
    embedding_forward(ids, weight, out);
    EXPECT_TRUE(same_bits(out, weight.index_select(0, ids))) << width;
    EXPECT_TRUE(surroundings_untouched(out));
  }
}

Tensor norm_reference(const Tensor& x, const Tensor& weight, double eps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt() * weight;
}

TEST_P(Layers, NormAddsAndNormalises) {
  const double eps = 1e-5;
  for (const std::int64_t width : {1, 3, 64, 576, 577, 4096, 12288}) {
    const Tensor residual = random({9, width});
    const Tensor delta = random_wide(9, width);
    const Tensor weight = random({width});
    Tensor sum = poisoned({9, width});
    Tensor out = wide(9, width, 0, 64);
    Tensor rstd = poisoned({9}, at::kFloat);
    add_rms_norm_forward(residual, delta, sum, weight, eps, out, rstd);
    EXPECT_LE(relative_error(sum, to_double(residual) + to_double(delta)), tolerance(1e-7)) << width;
    const Tensor x = to_double(sum);  // what is normalised is the sum as stored
    EXPECT_LE(relative_error(out, norm_reference(x, to_double(weight), eps)), tolerance(2e-6, 2)) << width;
    EXPECT_LE(relative_error(rstd, (x.square().mean(-1) + eps).rsqrt()), 2e-6) << width;
    EXPECT_TRUE(surroundings_untouched(out));
  }
}

TEST_P(Layers, NormWithoutDeltaAndInPlace) {
  const Tensor residual = random({5, 130});
  const Tensor weight = random({130});
  Tensor none;
  Tensor first = poisoned({5, 130});
  Tensor rstd = poisoned({5}, at::kFloat);
  add_rms_norm_forward(residual, Tensor(), none, weight, 1e-6, first, rstd);
  EXPECT_LE(relative_error(first, norm_reference(to_double(residual), to_double(weight), 1e-6)),
            tolerance(2e-6, 2));
  Tensor running = residual.clone();
  const Tensor delta = random({5, 130});
  Tensor sum = poisoned({5, 130});
  Tensor out = poisoned({5, 130});
  Tensor out_in_place = poisoned({5, 130});
  add_rms_norm_forward(residual, delta, sum, weight, 1e-6, out, rstd);
  add_rms_norm_forward(running, delta, running, weight, 1e-6, out_in_place, rstd);
  EXPECT_TRUE(same_bits(sum, running));
  EXPECT_TRUE(same_bits(out, out_in_place));
}

// Transformers rounds the normalised value before it multiplies with the weight.
TEST_P(Layers, NormRoundsAsTransformers) {
  const Tensor x = random({33, 256});
  const Tensor weight = random({256});
  Tensor none;
  Tensor out = poisoned({33, 256});
  Tensor rstd = poisoned({33}, at::kFloat);
  add_rms_norm_forward(x, Tensor(), none, weight, 1e-6, out, rstd);
  const Tensor x_hat = (x.to(at::kFloat) * rstd.unsqueeze(1)).to(x.scalar_type());
  EXPECT_TRUE(same_bits(out, x_hat * weight));
}

TEST_P(Layers, NormBackwardAddsAutogradsGradient) {
  const double eps = 1e-5;
  for (const std::int64_t width : {2, 63, 576, 4096, 12288}) {
    const Tensor x = random({6, width});
    const Tensor weight = random({width});
    const Tensor dout = random_wide(6, width, 0, 8);
    const Tensor before = random({6, width});
    Tensor none;
    Tensor out = poisoned({6, width});
    Tensor rstd = poisoned({6}, at::kFloat);
    add_rms_norm_forward(x, Tensor(), none, weight, eps, out, rstd);
    Tensor dx = before.clone();
    rms_norm_backward(dout, x, weight, rstd, dx);
    const Tensor wanted = leaf(x);
    norm_reference(wanted, to_double(weight), eps).backward(to_double(dout));
    EXPECT_LE(relative_error(dx, to_double(before) + wanted.grad()), tolerance(3e-6)) << width;
  }
}

struct Rope {
  HeadShape shape;
  Tensor cosines, sines, positions;
};

// The rotation as Transformers writes it: x * cos + rotate_half(x) * sin, after the norm over each head.
Tensor rope_reference(const Tensor& qk, const Rope& rope, const Tensor& q_weight, const Tensor& k_weight,
                      double eps) {
  const std::int64_t half = rope.shape.head_dim / 2;
  Tensor x = qk.view({qk.size(0), -1, rope.shape.head_dim});
  if (q_weight.defined()) {
    x = at::cat({norm_reference(x.slice(1, 0, rope.shape.heads), to_double(q_weight), eps),
                 norm_reference(x.slice(1, rope.shape.heads), to_double(k_weight), eps)},
                1);
  }
  const Tensor at_positions = rope.positions.cpu();
  const Tensor c = to_double(rope.cosines).index_select(0, at_positions).unsqueeze(1);
  const Tensor s = to_double(rope.sines).index_select(0, at_positions).unsqueeze(1);
  const Tensor rotated = at::cat({x.slice(2, half).neg(), x.slice(2, 0, half)}, 2);
  return (x * at::cat({c, c}, 2) + rotated * at::cat({s, s}, 2)).view({qk.size(0), -1});
}

class Rotary : public KernelTest {
 protected:
  Rope make(const HeadShape& shape) const {
    const Tensor angles = at::randn({50, shape.head_dim / 2}, at::kFloat) * 3;
    return {shape, on_device(angles.cos()), on_device(angles.sin()), ints({0, 1, 2, 49, 0, 17, 5})};
  }
};
RT_INSTANTIATE(Rotary, kPlaces);

TEST_P(Rotary, ForwardAndBackward) {
  for (const HeadShape shape : {HeadShape{9, 3, 64}, HeadShape{4, 1, 128}, HeadShape{3, 3, 10},
                                HeadShape{2, 1, 2}, HeadShape{2, 1, 256}, HeadShape{2, 2, 80}}) {
    for (const bool norms : {false, true}) {
      const Rope rope = make(shape);
      const std::int64_t width = (shape.heads + shape.kv_heads) * shape.head_dim;
      const Tensor q_weight = norms ? random({shape.head_dim}) : Tensor();
      const Tensor k_weight = norms ? random({shape.head_dim}) : Tensor();
      const Tensor in = random_wide(7, width, 0, 24);
      Tensor out = wide(7, width, 0, 16);
      Tensor rstd = norms ? poisoned({7, shape.heads + shape.kv_heads}, at::kFloat) : Tensor();
      qk_norm_rope_forward(in, out, q_weight, k_weight, 1e-6, rope.cosines, rope.sines, rope.positions, shape,
                           rstd);
      const Tensor x = leaf(in);
      const Tensor y = rope_reference(x, rope, q_weight, k_weight, 1e-6);
      EXPECT_LE(relative_error(out, y), tolerance(2e-6, norms ? 2 : 1)) << shape.head_dim << " " << norms;
      EXPECT_TRUE(surroundings_untouched(out));
      Tensor grad = random_wide(7, width, 0, 8);
      y.backward(to_double(grad));
      qk_norm_rope_backward(grad, in, q_weight, k_weight, rope.cosines, rope.sines, rope.positions, shape,
                            rstd);
      EXPECT_LE(relative_error(grad, x.grad()), tolerance(5e-6)) << shape.head_dim << " " << norms;
      EXPECT_TRUE(surroundings_untouched(grad));
    }
  }
}

TEST_P(Rotary, InPlaceOnlyWithoutNorms) {
  const HeadShape shape{2, 1, 16};
  const Rope rope = make(shape);
  const Tensor in = random({7, 48});
  Tensor out = poisoned({7, 48});
  Tensor rstd = poisoned({7, 3}, at::kFloat);
  qk_norm_rope_forward(in, out, Tensor(), Tensor(), 1e-6, rope.cosines, rope.sines, rope.positions, shape,
                       rstd);
  Tensor running = in.clone();
  qk_norm_rope_forward(running, running, Tensor(), Tensor(), 1e-6, rope.cosines, rope.sines, rope.positions,
                       shape, rstd);
  EXPECT_TRUE(same_bits(out, running));
  const Tensor weight = random({16});
  EXPECT_THROW(qk_norm_rope_forward(running, running, weight, weight, 1e-6, rope.cosines, rope.sines,
                                    rope.positions, shape, rstd),
               Failure);
}

Tensor swiglu_reference(const Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, -1);
  return halves[0] * halves[0].sigmoid() * halves[1];
}

TEST_P(Layers, SwigluForwardAndBackward) {
  for (const std::int64_t width : {1, 5, 64, 1536, 1539}) {
    Tensor gate_up = random_wide(8, 2 * width, 0, 8);
    gate_up.mul_(4);
    Tensor out = wide(8, width, 0, 64);
    swiglu_forward(gate_up, out);
    const Tensor x = leaf(gate_up);
    const Tensor y = swiglu_reference(x);
    EXPECT_LE(relative_error(out, y), tolerance(1e-6)) << width;
    EXPECT_TRUE(surroundings_untouched(out));
    const Tensor dout = random_wide(8, width, 0, 3);
    y.backward(to_double(dout));
    Tensor grad = wide(8, 2 * width, 0, 8);
    Tensor again = wide(8, width, 0, 64);
    swiglu_backward(dout, gate_up, grad, again);
    EXPECT_TRUE(same_bits(again, out)) << width;
    EXPECT_TRUE(surroundings_untouched(again));
    EXPECT_LE(relative_error(grad, x.grad()), tolerance(2e-6)) << width;
    EXPECT_TRUE(surroundings_untouched(grad));
    Tensor not_wanted;
    swiglu_backward(dout, gate_up, gate_up, not_wanted);
    EXPECT_TRUE(same_bits(gate_up, grad)) << width;
  }
}

// Far from zero the sigmoid is 0 or 1, and its exponential must not overflow into NaN.
TEST_P(Layers, SwigluAtItsLimits) {
  const Tensor gates = at::tensor({-1e30, -500.0, -89.0, -87.5, -80.0, 0.0, 80.0, 89.0, 500.0, 1e30});
  const Tensor gate_up = at::cat({gates, at::ones_like(gates)}).unsqueeze(0).to(GetParam().type).to(device());
  Tensor out = poisoned({1, 10});
  swiglu_forward(gate_up, out);
  EXPECT_LE(to_double(out.slice(1, 0, 5)).abs().max().item<double>(), 1e-32);
  EXPECT_LE(relative_error(out.slice(1, 5), gate_up.slice(1, 5, 10)), 1e-6);
  Tensor grad = poisoned({1, 20});
  Tensor not_wanted;
  swiglu_backward(at::ones_like(out), gate_up, grad, not_wanted);
  EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

TEST_P(Layers, ShapesThatDoNotFitAreNamed) {
  Tensor out = poisoned({3, 8});
  EXPECT_THROW(swiglu_forward(random({3, 15}), out), Failure);
  EXPECT_THROW(swiglu_forward(random({4, 16}), out), Failure);
  EXPECT_THROW(swiglu_forward(random({3, 32}).slice(1, 0, 32, 2), out), Failure);
  EXPECT_THROW(swiglu_forward(random({3, 16}).to(at::kDouble), out), Failure);
  try {
    swiglu_forward(Tensor(), out);
    FAIL() << "an undefined tensor was accepted";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("gate_up"), std::string::npos) << failure.what();
  }
}

}  // namespace
}  // namespace ranktune::kernels
