#include "model/lora.hpp"

#include <gtest/gtest.h>

#include <cmath>
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

}  // namespace
}  // namespace ranktune::model
