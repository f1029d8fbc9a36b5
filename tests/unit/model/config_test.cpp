#include "model/config.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/error.hpp"

namespace ranktune::model {
namespace {

using nlohmann::json;

json small() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"rms_norm_eps", 1e-5}};
}

std::string refusal(const json& config) {
  try {
    parse_model_config(config, "config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfig, ReadsALlama) {
  const ModelConfig config = parse_model_config(small(), "config.json");
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.qkv_width(), 4 * 16 + 2 * 2 * 16);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_FALSE(config.tied_embeddings);
  // 2 layers of (64 x 128 + 64 x 64 + 3 x 64 x 96 + 2 x 64), the last norm, embedding and head.
  EXPECT_EQ(config.parameters(), 2 * (8192 + 4096 + 18432 + 128) + 64 + 2 * 6400);
}

TEST(ModelConfig, BothSpellingsOfRopeMeanTheSame) {
  json old_spelling = small();
  old_spelling["rope_theta"] = 500000.0;
  old_spelling["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  json new_spelling = small();
  new_spelling["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 500000.0}};
  for (const json& spelling : {old_spelling, new_spelling}) {
    const ModelConfig config = parse_model_config(spelling, "config.json");
    EXPECT_EQ(config.rope.type, RopeConfig::Type::linear);
    EXPECT_EQ(config.rope.theta, 500000.0);
    EXPECT_EQ(config.rope.factor, 4.0);
  }
}

TEST(ModelConfig, RefusesByNameWhatItDoesNotUnderstand) {
  const std::vector<std::pair<std::string, json>> table{{"hidden_act", "gelu"},
                                                        {"attention_bias", true},
                                                        {"mlp_bias", true},
                                                        {"use_sliding_window", true},
                                                        {"partial_rotary_factor", 0.5},
                                                        {"num_experts", 8},
                                                        {"quantization_config", json::object({{"bits", 4}})},
                                                        {"num_key_value_heads", 3},
                                                        {"vocab_size", -1},
                                                        {"hidden_size", "big"},
                                                        {"rms_norm_eps", 0.0},
                                                        {"num_hidden_layers", 100000},
                                                        {"head_dim", 15}};
  for (const auto& [key, value] : table) {
    json config = small();
    config[key] = value;
    EXPECT_NE(refusal(config).find(key), std::string::npos) << key << ": " << refusal(config);
  }
  json yarn = small();
  yarn["rope_scaling"] = {{"rope_type", "longrope"}, {"factor", 2.0}};
  EXPECT_NE(refusal(yarn).find("longrope"), std::string::npos);
  json mamba = small();
  mamba["architectures"] = {"MambaForCausalLM"};
  EXPECT_NE(refusal(mamba).find("MambaForCausalLM"), std::string::npos);
  EXPECT_NE(refusal(json::array()).find("not a JSON object"), std::string::npos);
}

TEST(ModelConfig, Llama3FrequenciesKeepTheHighOnesAndDivideTheLowOnes) {
  RopeConfig rope;
  rope.type = RopeConfig::Type::llama3;
  rope.theta = 500000.0;
  rope.factor = 8.0;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  rope.original_max_positions = 8192;
  RopeConfig plain;
  plain.theta = rope.theta;
  const auto scaled = rope_inverse_frequencies(rope, 128);
  const auto unscaled = rope_inverse_frequencies(plain, 128);
  EXPECT_EQ(scaled.front(), unscaled.front());
  EXPECT_NEAR(scaled.back() * 8.0, unscaled.back(), 1e-6 * unscaled.back());
  for (std::size_t i = 1; i < scaled.size(); ++i) EXPECT_LT(scaled[i], scaled[i - 1]);
}

TEST(ModelConfig, RealConfigurationsLoadOrAreRefusedByName) {
  const char* data = std::getenv("RANKTUNE_TEST_DATA");
  const std::filesystem::path folder = std::filesystem::path(data == nullptr ? "" : data) / "configs";
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "no folder of real configurations";
  int loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    try {
      const ModelConfig config = read_model_config(entry.path());
      EXPECT_GT(config.parameters(), 100'000'000) << entry.path();
      ++loaded;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("is not supported"), std::string::npos) << error.what();
    }
  }
  EXPECT_GE(loaded, 13);
}

}  // namespace
}  // namespace ranktune::model
