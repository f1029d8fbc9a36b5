#include "data/batch.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"

namespace ranktune::data {
namespace {

using Ints = std::vector<std::int32_t>;
using Indices = std::vector<std::int64_t>;

// Samples of 3, 2, 5 and 4 tokens; ids tell sample and position: 10 * (sample + 1) + position.
TokenStore store_of_four() {
  TokenStore store;
  std::int32_t sample = 0;
  for (const std::int32_t length : {3, 2, 5, 4}) {
    ++sample;
    for (std::int32_t i = 0; i < length; ++i) store.ids.push_back(10 * sample + i);
    store.offsets.push_back(store.tokens());
  }
  return store;
}

TEST(MakePasses, LaysSamplesEndToEnd) {
  const auto passes = make_passes(store_of_four(), Indices{2, 0, 1}, 0);
  ASSERT_EQ(passes.size(), 1U);
  const auto& pass = passes.front();
  EXPECT_EQ(pass.ids, (Ints{30, 31, 32, 33, 34, 10, 11, 12, 20, 21}));
  EXPECT_EQ(pass.positions, (Ints{0, 1, 2, 3, 4, 0, 1, 2, 0, 1}));
  EXPECT_EQ(pass.targets, (Ints{31, 32, 33, 34, -1, 11, 12, -1, 21, -1}));
  EXPECT_EQ(pass.cu_seqlens, (Ints{0, 5, 8, 10}));
  EXPECT_EQ(pass.samples, (Indices{2, 0, 1}));
  EXPECT_EQ(pass.max_seqlen, 5);
  EXPECT_EQ(pass.target_tokens, 7);
  EXPECT_EQ(pass.tokens(), 10);
  EXPECT_EQ(pass.sequences(), 3);
}

TEST(MakePasses, SkipsEmptySlots) {
  const auto passes = make_passes(store_of_four(), Indices{-1, 1, -1}, 0);
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_EQ(passes[0].samples, (Indices{1}));
  EXPECT_TRUE(make_passes(store_of_four(), Indices{-1, -1}, 0).empty());
  EXPECT_TRUE(make_passes(store_of_four(), Indices{}, 100).empty());
}

TEST(MakePasses, SplitsAtSampleBoundaries) {
  const auto samples_of = [](std::int64_t most) {
    std::vector<Indices> samples;
    for (const auto& pass : make_passes(store_of_four(), Indices{0, 1, 2, 3}, most)) {
      samples.push_back(pass.samples);
    }
    return samples;
  };
  EXPECT_EQ(samples_of(14), (std::vector<Indices>{{0, 1, 2, 3}}));
  EXPECT_EQ(samples_of(13), (std::vector<Indices>{{0, 1, 2}, {3}}));
  EXPECT_EQ(samples_of(5), (std::vector<Indices>{{0, 1}, {2}, {3}}));
  EXPECT_EQ(samples_of(4),
            (std::vector<Indices>{{0}, {1}, {2}, {3}}));  // sample 2 is longer: a pass of its own
  EXPECT_EQ(samples_of(1), (std::vector<Indices>{{0}, {1}, {2}, {3}}));
}

TEST(MakePasses, SplittingLosesNothing) {
  std::int64_t tokens = 0;
  std::int64_t targets = 0;
  for (const auto& pass : make_passes(store_of_four(), Indices{0, 1, 2, 3}, 6)) {
    tokens += pass.tokens();
    targets += pass.target_tokens;
    EXPECT_EQ(pass.cu_seqlens.front(), 0);
    EXPECT_EQ(pass.cu_seqlens.back(), pass.tokens());
    EXPECT_EQ(pass.positions.size(), pass.ids.size());
    EXPECT_EQ(pass.targets.size(), pass.ids.size());
  }
  EXPECT_EQ(tokens, 14);
  EXPECT_EQ(targets, 10);
}

TEST(MakePasses, RefusesSamplesThatDoNotExist) {
  EXPECT_THROW(make_passes(store_of_four(), Indices{4}, 0), Failure);
  EXPECT_THROW(make_passes(store_of_four(), Indices{-2}, 0), Failure);
  EXPECT_THROW(make_passes(store_of_four(), Indices{0}, -1), Failure);
}

TEST(MakePasses, OnlyMarkedTokensAreTargets) {
  auto store = store_of_four();
  store.trained = {1, 0, 1, /**/ 0, 1, /**/ 0, 0, 0, 1, 1, /**/ 1, 1, 0, 0};
  const auto passes = make_passes(store, Indices{0, 2, 1, 3}, 0);
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_EQ(passes[0].targets, (Ints{-1, 12, -1, -1, -1, 33, 34, -1, 21, -1, 41, -1, -1, -1}));
  EXPECT_EQ(passes[0].target_tokens, 5);
}

}  // namespace
}  // namespace ranktune::data
