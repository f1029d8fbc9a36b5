// Rotary tables against the formulas; their agreement with Transformers is checked live in tests/golden.
#include "model/rope.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ranktune::model {
namespace {

RopeConfig plain() {
  RopeConfig rope;
  rope.theta = 500000.0;
  return rope;
}

TEST(Rope, Llama3KeepsTheHighFrequenciesAndDividesTheLowOnes) {
  RopeConfig rope = plain();
  rope.type = RopeConfig::Type::llama3;
  rope.factor = 8.0;
  rope.original_max_positions = 8192;
  const auto scaled = rope_inverse_frequencies(rope, 128);
  const auto unscaled = rope_inverse_frequencies(plain(), 128);
  EXPECT_EQ(scaled.front(), unscaled.front());
  EXPECT_NEAR(scaled.back() * 8.0, unscaled.back(), 1e-6 * unscaled.back());
  for (std::size_t i = 1; i < scaled.size(); ++i) EXPECT_LT(scaled[i], scaled[i - 1]);
}

TEST(Rope, YarnDoesTheSameBetweenTwoNumbersOfTurnsAndScalesTheTable) {
  RopeConfig rope = plain();
  rope.type = RopeConfig::Type::yarn;
  rope.factor = 4.0;
  rope.attention_factor = 1.25;
  rope.original_max_positions = 32768;
  const auto scaled = rope_inverse_frequencies(rope, 128);
  const auto unscaled = rope_inverse_frequencies(plain(), 128);
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    const double turns = 32768 * unscaled[i] / (2 * M_PI);  // within the original context
    const double divided = unscaled[i] / scaled[i];
    if (turns > 40) {
      EXPECT_NEAR(divided, 1.0, 1e-6) << i;
    }
    if (turns < 0.7) {
      EXPECT_NEAR(divided, 4.0, 1e-6) << i;
    }
    EXPECT_GE(divided, 1.0 - 1e-6);
    EXPECT_LE(divided, 4.0 + 1e-6);
  }
  const RopeTable table = rope_table(rope, 128, 3, at::kCPU);
  EXPECT_EQ(table.cosines.sizes(), (std::vector<std::int64_t>{3, 64}));
  EXPECT_EQ(table.cosines[0][5].item<float>(), 1.25F);
  EXPECT_NEAR(table.sines[2][0].item<float>(), 1.25 * std::sin(2.0), 1e-6);
}

// Sequences of 3, 9, 0 and 2 tokens, the last of which starts in the middle: at positions 19 and 20.
TEST(Rope, DynamicTakesEachSequencesOwnLength) {
  RopeConfig rope = plain();
  rope.type = RopeConfig::Type::dynamic;
  rope.factor = 2.0;
  rope.original_max_positions = 6;
  const std::vector<std::int32_t> list{0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 19, 20};
  const at::Tensor positions = at::tensor(at::ArrayRef<std::int32_t>(list), at::kInt);
  const at::Tensor cu_seqlens = at::tensor({0, 3, 12, 12, 14}, at::kInt);
  RopeTable table = empty_dynamic_table(10, 20, at::kCPU);
  fill_dynamic_table(rope, positions, cu_seqlens, table);
  const auto row = [&](std::int64_t token, double length) {
    const double stretch = std::pow(2.0 * std::max(length, 6.0) / 6.0 - 1.0, 10.0 / 8.0);
    for (std::int64_t i = 0; i < 5; ++i) {
      const double angle = list[static_cast<std::size_t>(token)] /
                           std::pow(500000.0 * stretch, 2.0 * static_cast<double>(i) / 10.0);
      EXPECT_NEAR(table.cosines[token][i].item<float>(), std::cos(angle), 2e-6) << token << " " << i;
      EXPECT_NEAR(table.sines[token][i].item<float>(), std::sin(angle), 2e-6) << token << " " << i;
    }
  };
  for (const std::int64_t token : {0, 2}) row(token, 3);
  for (const std::int64_t token : {3, 7, 11}) row(token, 9);
  for (const std::int64_t token : {12, 13}) row(token, 21);
  EXPECT_EQ(table.rows[13].item<int>(), 13);
}

}  // namespace
}  // namespace ranktune::model
