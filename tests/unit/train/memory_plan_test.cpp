#include "train/memory_plan.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace ranktune::train {
namespace {

// A decoder on the meta device: shapes without memory.
model::Decoder shapes() {
  model::ModelConfig config;
  config.vocab_size = 1000;
  config.hidden_size = 256;
  config.intermediate_size = 512;
  config.layers = 12;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  model::DecoderOptions options;
  options.device = at::kMeta;
  options.max_positions = 16;
  return {config, model::LoraConfig{}, options};
}

MemoryRequest request(std::int64_t free_bytes) {
  MemoryRequest r;
  r.largest_window = 8000;
  r.longest_sample = 900;
  r.free_bytes = free_bytes;
  return r;
}

TEST(MemoryPlan, KeepsEverythingWhereThereIsRoom) {
  const model::Decoder decoder = shapes();
  const MemoryPlan plan = plan_memory(decoder, request(std::int64_t{1} << 40));
  EXPECT_FALSE(plan.recompute);
  EXPECT_EQ(plan.reserved_tokens, 8000);
  EXPECT_EQ(plan.activation_bytes, decoder.activation_bytes(8000, false));
}

TEST(MemoryPlan, SplitsTheWindowBeforeItRecomputes) {
  const model::Decoder decoder = shapes();
  const MemoryPlan plan = plan_memory(decoder, request(decoder.activation_bytes(8000, false) / 2));
  EXPECT_FALSE(plan.recompute);
  EXPECT_LT(plan.reserved_tokens, 8000);
  EXPECT_GE(plan.reserved_tokens, 1024);
}

TEST(MemoryPlan, RecomputesWhenASplitIsNotEnough) {
  const model::Decoder decoder = shapes();
  const std::int64_t bytes = decoder.activation_bytes(1024, false);
  const MemoryPlan plan = plan_memory(decoder, request(bytes));
  EXPECT_TRUE(plan.recompute);
  EXPECT_GE(plan.reserved_tokens, 900);
  EXPECT_LE(plan.activation_bytes, bytes);
}

TEST(MemoryPlan, SaysWhatIsMissingWhenNothingFits) {
  const model::Decoder decoder = shapes();
  EXPECT_THROW(plan_memory(decoder, request(1 << 20)), UserError);
  MemoryRequest never = request(decoder.activation_bytes(800, false));
  never.recompute = Recompute::never;
  EXPECT_THROW(plan_memory(decoder, never), UserError);
}

TEST(MemoryPlan, WhatIsAskedForHolds) {
  const model::Decoder decoder = shapes();
  MemoryRequest asked = request(std::int64_t{1} << 40);
  asked.max_tokens_per_pass = 700;
  EXPECT_EQ(plan_memory(decoder, asked).max_tokens_per_pass, 700);
  EXPECT_EQ(plan_memory(decoder, asked).reserved_tokens, 900);  // the longest sample is a pass of its own
  asked.recompute = Recompute::always;
  EXPECT_TRUE(plan_memory(decoder, asked).recompute);
}

}  // namespace
}  // namespace ranktune::train
