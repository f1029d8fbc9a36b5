#include "train/generation.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

namespace ranktune::train {
namespace {

constexpr int kDraws = 20'000;
const std::vector<float> kLogits{1.0F, 3.0F, -2.0F, 3.0F, 2.0F};

std::array<double, 5> shares(const Sampling& sampling) {
  std::array<double, 5> counts{};
  for (int i = 0; i < kDraws; ++i) {
    counts[static_cast<std::size_t>(choose_token(kLogits, sampling, static_cast<std::uint64_t>(i)))] +=
        1.0 / kDraws;
  }
  return counts;
}

// What the shares are expected to be when only `kept` tokens can be drawn.
void expect_softmax(const Sampling& sampling, const std::vector<std::size_t>& kept) {
  const auto found = shares(sampling);
  double sum = 0;
  for (const std::size_t id : kept) sum += std::exp(kLogits[id] / sampling.temperature);
  std::array<double, 5> expected{};
  for (const std::size_t id : kept) expected[id] = std::exp(kLogits[id] / sampling.temperature) / sum;
  // Five standard deviations of a share.
  for (std::size_t id = 0; id < 5; ++id)
    EXPECT_NEAR(found[id], expected[id], 5 * 0.5 / std::sqrt(kDraws)) << id;
  for (std::size_t id = 0; id < 5; ++id) EXPECT_EQ(found[id] > 0, expected[id] > 0) << id;
}

TEST(ChooseToken, GreedyTakesTheFirstOfTheLikeliest) {
  EXPECT_EQ(choose_token(kLogits, Sampling{}, 0), 1);
}

TEST(ChooseToken, DrawsFromTheSoftmax) {
  Sampling sampling;
  sampling.temperature = 1.7;
  expect_softmax(sampling, {0, 1, 2, 3, 4});
}

TEST(ChooseToken, TopKKeepsTheLikeliest) {
  Sampling sampling;
  sampling.temperature = 0.8;
  sampling.top_k = 3;
  expect_softmax(sampling, {1, 3, 4});
}

TEST(ChooseToken, TopPKeepsTheFewestThatHoldThePart) {
  Sampling sampling;
  sampling.temperature = 1;
  sampling.top_p = 0.75;  // the two likeliest hold 0.40 each
  expect_softmax(sampling, {1, 3});
  sampling.top_p = 0.9;
  expect_softmax(sampling, {1, 3, 4});
  sampling.top_p = 1e-9;
  expect_softmax(sampling, {1});
}

TEST(ChooseToken, TheDrawIsAFunctionOfSeedAndIndex) {
  Sampling sampling;
  sampling.temperature = 1;
  sampling.seed = 7;
  Sampling other = sampling;
  other.seed = 8;
  int different = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(choose_token(kLogits, sampling, i), choose_token(kLogits, sampling, i));
    different += choose_token(kLogits, sampling, i) != choose_token(kLogits, other, i) ? 1 : 0;
  }
  EXPECT_GT(different, 50);
}

// A byte-level tokenizer of five tokens: the three bytes of the euro sign, a letter, the end of a text.
class Bytes {
 public:
  Bytes()
      : folder_(std::filesystem::temp_directory_path() / ("ranktune-bytes-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(folder_);
    std::ofstream(folder_ / "tokenizer.json")
        << R"({"version": "1.0", "added_tokens": [{"id": 4, "content": "<end>", "special": true,
               "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
               "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
               "post_processor": null, "decoder": {"type": "ByteLevel"},
               "model": {"type": "BPE", "vocab": {"\u00e2": 0, "\u0124": 1, "\u00ac": 2, "a": 3, "<end>": 4},
                         "merges": []}})";
    std::ofstream(folder_ / "tokenizer_config.json") << R"({"eos_token": "<end>"})";
  }
  ~Bytes() { std::filesystem::remove_all(folder_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  data::Tokenizer tokenizer() const { return data::Tokenizer::from_folder(folder_); }

 private:
  std::filesystem::path folder_;
};

TEST(TextStream, GivesWholeCharacters) {
  const Bytes bytes;
  const data::Tokenizer tokenizer = bytes.tokenizer();
  TextStream text(tokenizer, {3, 3});
  const std::vector<std::pair<std::int32_t, std::string>> steps{
      {3, "a"}, {0, ""}, {1, ""}, {2, "\u20ac"}, {4, ""}, {0, ""}, {3, "\ufffda"}};
  for (const auto& [id, piece] : steps) EXPECT_EQ(text.add(id), piece) << id;
  EXPECT_EQ(text.finish(), "");
  EXPECT_EQ(text.add(0), "");
  EXPECT_EQ(text.finish(), "\ufffd");
}

TEST(TextStream, NeedsTheEndOfThePromptOnly) {
  const Bytes bytes;
  const data::Tokenizer tokenizer = bytes.tokenizer();
  TextStream text(tokenizer, std::vector<std::int32_t>(20, 3));
  EXPECT_EQ(text.add(3), "a");
  TextStream more(tokenizer, {3, 3, 3});
  std::string all;
  for (const std::int32_t id : {0, 1, 2, 0, 1, 2, 3}) all += more.add(id);
  EXPECT_EQ(all, "\u20ac\u20aca");
}

}  // namespace
}  // namespace ranktune::train
