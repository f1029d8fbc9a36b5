#include "model/lora.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

namespace ranktune::model {
namespace {

ModelConfig small() {
  ModelConfig config;
  config.vocab_size = 50;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.layers = 2;
  config.heads = 3;
  config.kv_heads = 1;
  config.head_dim = 10;
  return config;
}

TEST(FlatLayout, TensorsDoNotOverlapAndTheAsOfAGroupLieTogether) {
  LoraConfig lora;
  lora.r = 5;
  const FlatLayout layout = make_flat_layout(small(), lora);
  ASSERT_EQ(layout.tensors.size(), 2U * 7 * 2);
  std::set<std::int64_t> used;
  for (const FlatTensor& tensor : layout.tensors) {
    for (std::int64_t i = 0; i < tensor.rows * tensor.columns; ++i) {
      EXPECT_TRUE(used.insert(tensor.offset + i).second) << tensor.name;
    }
    EXPECT_LE(tensor.offset + tensor.rows * tensor.columns, layout.elements);
  }
  EXPECT_EQ(layout.parameters, static_cast<std::int64_t>(used.size()));
  const FlatTensor& q = layout.find(1, Projection::q, true);
  const FlatTensor& k = layout.find(1, Projection::k, true);
  EXPECT_EQ(k.offset, q.offset + q.rows * q.columns);
  EXPECT_EQ(layout.find(0, Projection::down, false).name,
            "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight");
}

TEST(FlatLayout, HoldsOnlyWhatIsAdapted) {
  LoraConfig lora;
  lora.targets.fill(false);
  lora.targets[static_cast<std::size_t>(Projection::v)] = true;
  const FlatLayout layout = make_flat_layout(small(), lora);
  EXPECT_EQ(layout.tensors.size(), 4U);
  EXPECT_ANY_THROW(layout.find(0, Projection::q, true));
}

TEST(LoraConfig, Scaling) {
  LoraConfig lora;
  lora.r = 16;
  lora.alpha = 32;
  EXPECT_DOUBLE_EQ(lora.scaling(), 2.0);
  lora.rslora = true;
  EXPECT_DOUBLE_EQ(lora.scaling(), 8.0);
}

TEST(Initialisation, IsPeftsInDistributionAndAFunctionOfTheSeed) {
  ModelConfig config = small();
  config.hidden_size = 400;
  LoraConfig lora;
  lora.r = 64;
  const FlatLayout layout = make_flat_layout(config, lora);
  std::vector<float> first(static_cast<std::size_t>(layout.elements));
  std::vector<float> second = first;
  std::vector<float> other = first;
  initialise_lora(layout, 1, first);
  initialise_lora(layout, 1, second);
  initialise_lora(layout, 2, other);
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
  const FlatTensor& a = layout.find(0, Projection::q, true);
  const double bound = 1.0 / std::sqrt(400.0);
  double sum = 0;
  double squares = 0;
  const auto count = static_cast<double>(a.rows * a.columns);
  for (std::int64_t i = 0; i < a.rows * a.columns; ++i) {
    const double value = first[static_cast<std::size_t>(a.offset + i)];
    EXPECT_LE(std::abs(value), bound);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / count, 0.0, 0.02 * bound);
  EXPECT_NEAR(std::sqrt(squares / count), bound / std::sqrt(3.0), 0.02 * bound);
  const FlatTensor& b = layout.find(1, Projection::o, false);
  for (std::int64_t i = 0; i < b.rows * b.columns; ++i)
    EXPECT_EQ(first[static_cast<std::size_t>(b.offset + i)], 0.0F);
}

// Activations lie in memory that nobody cleared: whatever was there, NaN included, must not come through.
TEST(WideLinear, WhatABufferHeldBeforeDoesNotMatter) {
  constexpr std::int64_t tokens = 5;
  const ModelConfig config = small();
  LoraConfig lora;
  lora.r = 5;  // 15 of q, k and v, padded to 16 columns
  const at::TensorOptions fp32 = at::kFloat;
  const FlatLayout layout = make_flat_layout(config, lora);
  const WideLinear group(config, lora, 0, {Projection::q, Projection::k, Projection::v}, fp32);
  ASSERT_GT(group.columns(), 3 * lora.r);
  std::vector<kernels::Segment> segments;
  group.append_segments(layout, segments);
  for (const kernels::Segment& segment : segments) Tensor(segment.destination).fill_(0.25);
  for (const double p : {0.0, 0.5}) {
    const auto poisoned = [&](at::IntArrayRef shape) {
      return at::full(shape, std::numeric_limits<float>::quiet_NaN(), fp32);
    };
    DropoutContext dropout;
    dropout.p = p;
    dropout.step = at::zeros({1}, at::kLong);
    dropout.sample_of_token = at::zeros({tokens}, at::kLong);
    dropout.positions = at::arange(tokens, at::kInt);
    dropout.scratch = poisoned({tokens, group.wide()});
    const Tensor x = poisoned({tokens, group.wide()});
    x.narrow(1, 0, group.in()).fill_(1);
    Tensor y = poisoned({tokens, group.out()});
    group.forward(group.weight(), x, y, dropout);
    EXPECT_TRUE(y.isfinite().all().item<bool>()) << "dropout " << p;
    for (const bool want_dx : {true, false}) {
      const Tensor gradient = at::zeros({layout.elements}, fp32);
      Tensor dx = poisoned({tokens, group.wide()});
      const Tensor dy = at::ones({tokens, group.out()}, fp32);
      group.backward(group.weight(), dy, dx, want_dx, dropout);
      group.accumulate_b(dy, x.narrow(1, group.in(), group.columns()), layout, gradient);
      group.accumulate_a(x, dx, layout, gradient, dropout);
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << "dropout " << p;
      const Tensor used = dx.narrow(1, 0, want_dx ? group.in() : 0);
      EXPECT_TRUE(used.isfinite().all().item<bool>()) << "dropout " << p;
    }
  }
}

}  // namespace
}  // namespace ranktune::model
