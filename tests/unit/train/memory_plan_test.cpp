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
  EXPECT_EQ(plan.recomputed, 0);
  EXPECT_EQ(plan.reserved_tokens, 8000);
  EXPECT_EQ(plan.activation_bytes, decoder.activation_bytes(8000, 0));
}

TEST(MemoryPlan, SplitsTheWindowBeforeItRecomputes) {
  const model::Decoder decoder = shapes();
  const MemoryPlan plan = plan_memory(decoder, request(decoder.activation_bytes(8000, 0) / 2));
  EXPECT_EQ(plan.recomputed, 0);
  EXPECT_LT(plan.reserved_tokens, 8000);
  EXPECT_GE(plan.reserved_tokens, 1024);
}

TEST(MemoryPlan, RecomputesWhenASplitIsNotEnough) {
  const model::Decoder decoder = shapes();
  const std::int64_t bytes = decoder.activation_bytes(1024, 0);
  const MemoryPlan plan = plan_memory(decoder, request(bytes));
  EXPECT_GT(plan.recomputed, 0);
  EXPECT_LT(plan.recomputed, 12);  // no more blocks than it takes
  EXPECT_GE(plan.reserved_tokens, 900);
  EXPECT_LE(plan.activation_bytes, bytes);
}

TEST(MemoryPlan, RecomputesOnlyAsManyBlocksAsItTakes) {
  const model::Decoder decoder = shapes();
  MemoryRequest one_pass = request(0);
  one_pass.longest_sample = one_pass.largest_window;  // cannot be split
  for (std::int64_t recomputed = 2; recomputed <= 12; ++recomputed) {
    const std::int64_t bytes = decoder.activation_bytes(8000, recomputed);
    EXPECT_LT(bytes, decoder.activation_bytes(8000, recomputed - 1));
    one_pass.free_bytes = (bytes + 1000) * 100 / 85 + 100;
    EXPECT_EQ(plan_memory(decoder, one_pass).recomputed, recomputed);
  }
  EXPECT_EQ(decoder.activation_bytes(8000, 1), decoder.activation_bytes(8000, 0));  // nothing to share with
}

TEST(MemoryPlan, SaysWhatIsMissingWhenNothingFits) {
  const model::Decoder decoder = shapes();
  EXPECT_THROW(plan_memory(decoder, request(1 << 20)), UserError);
  MemoryRequest never = request(decoder.activation_bytes(800, 0));
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
  EXPECT_EQ(plan_memory(decoder, asked).recomputed, 12);
}

}  // namespace
}  // namespace ranktune::train
