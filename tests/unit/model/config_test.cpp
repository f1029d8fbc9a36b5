#include "model/config.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <tuple>

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

json of_family(const char* architecture, const char* model_type) {
  json config = small();
  config["architectures"] = {architecture};
  config["model_type"] = model_type;
  return config;
}
json mistral() {
  return of_family("MistralForCausalLM", "mistral");
}
json qwen2() {
  return of_family("Qwen2ForCausalLM", "qwen2");
}
json qwen3() {
  return of_family("Qwen3ForCausalLM", "qwen3");
}

json with(json config, const json& keys) {
  config.update(keys);
  return config;
}

ModelConfig parsed(const json& config) {
  return parse_model_config(config, "config.json");
}

// What Transformers assumes where a key is absent.
TEST(ModelConfig, EachFamilyHasItsOwnDefaults) {
  json sparse = qwen3();
  sparse.erase("num_key_value_heads");
  sparse["num_attention_heads"] = 32;
  const ModelConfig qwen = parsed(sparse);
  EXPECT_EQ(qwen.head_dim, 128);
  EXPECT_EQ(qwen.kv_heads, 32);
  EXPECT_EQ(qwen.max_positions, 32768);
  EXPECT_TRUE(qwen.qk_norm);
  sparse = mistral();
  sparse["num_attention_heads"] = 8;
  sparse.erase("num_key_value_heads");
  EXPECT_EQ(parsed(sparse).kv_heads, 8);
  EXPECT_EQ(parsed(sparse).windows, (std::vector<std::int64_t>{4096, 4096}));
  sparse["num_key_value_heads"] = nullptr;
  sparse["num_attention_heads"] = 4;
  EXPECT_EQ(parsed(sparse).kv_heads, 4);
  EXPECT_EQ(parsed({{"model_type", "llama"},
                    {"vocab_size", 10},
                    {"hidden_size", 8},
                    {"intermediate_size", 8},
                    {"num_hidden_layers", 1},
                    {"num_attention_heads", 4}})
                .kv_heads,
            4);
}

TEST(ModelConfig, Biases) {
  const auto biases = [](const json& config) {
    const ModelConfig model = parsed(config);
    return std::array<bool, 3>{model.qkv_bias, model.o_bias, model.mlp_bias};
  };
  EXPECT_EQ(biases(small()), (std::array<bool, 3>{false, false, false}));
  EXPECT_EQ(biases(with(small(), {{"attention_bias", true}})), (std::array<bool, 3>{true, true, false}));
  EXPECT_EQ(biases(with(small(), {{"mlp_bias", true}})), (std::array<bool, 3>{false, false, true}));
  EXPECT_EQ(biases(mistral()), (std::array<bool, 3>{false, false, false}));
  EXPECT_EQ(biases(qwen2()), (std::array<bool, 3>{true, false, false}));
  EXPECT_EQ(biases(with(qwen3(), {{"attention_bias", true}})), (std::array<bool, 3>{true, true, false}));
  EXPECT_EQ(parsed(qwen2()).parameters(), parsed(small()).parameters() + 2 * 128);
  EXPECT_EQ(parsed(with(small(), {{"attention_bias", true}, {"mlp_bias", true}})).parameters(),
            parsed(small()).parameters() + 2 * (128 + 64 + 2 * 96 + 64));
}

TEST(ModelConfig, Windows) {
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(parsed(small()).windows, Windows{});
  EXPECT_EQ(parsed(with(small(), {{"sliding_window", 7}, {"use_sliding_window", false}})).windows, Windows{});
  EXPECT_EQ(parsed(with(mistral(), {{"sliding_window", 7}})).windows, (Windows{7, 7}));
  EXPECT_EQ(parsed(with(mistral(), {{"sliding_window", nullptr}})).windows, Windows{});
  EXPECT_EQ(parsed(with(mistral(), {{"sliding_window", nullptr}})).window(1), 0);
  const json qwen = with(qwen2(), {{"sliding_window", 9}, {"max_window_layers", 1}});
  EXPECT_EQ(parsed(qwen).windows, Windows{});
  const json used = with(qwen, {{"use_sliding_window", true}});
  EXPECT_EQ(parsed(used).windows, (Windows{0, 9}));
  EXPECT_EQ(parsed(used).window(1), 9);
  EXPECT_EQ(parsed(with(used, {{"max_window_layers", 0}})).windows, (Windows{9, 9}));
  EXPECT_EQ(parsed(with(used, {{"max_window_layers", 2}})).windows, Windows{});
  EXPECT_EQ(parsed(with(used, {{"layer_types", {"sliding_attention", "full_attention"}}})).windows,
            (Windows{9, 0}));
  EXPECT_EQ(parsed(with(qwen, {{"layer_types", {"full_attention", "full_attention"}}})).windows, Windows{});
}

TEST(ModelConfig, BothSpellingsOfRopeMeanTheSame) {
  const json old_spelling =
      with(small(), {{"rope_theta", 500000.0}, {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}});
  const json new_spelling = with(
      small(), {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 500000.0}}}});
  for (const json& spelling : {old_spelling, new_spelling}) {
    const ModelConfig config = parsed(spelling);
    EXPECT_EQ(config.rope.type, RopeConfig::Type::linear);
    EXPECT_EQ(config.rope.theta, 500000.0);
    EXPECT_EQ(config.rope.factor, 4.0);
  }
  EXPECT_EQ(parsed(with(small(), {{"rope_scaling", nullptr}})).rope.type, RopeConfig::Type::standard);
}

TEST(ModelConfig, ReadsYarn) {
  const json scaling{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  const auto rope = [&](const json& more) {
    return parsed(with(small(), {{"rope_scaling", with(scaling, more)}})).rope;
  };
  EXPECT_EQ(rope(json::object()).original_max_positions, 32768);
  EXPECT_NEAR(rope(json::object()).attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_NEAR(rope({{"mscale", 2.0}, {"mscale_all_dim", 0.5}}).attention_factor,
              (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-12);
  EXPECT_EQ(rope({{"attention_factor", 1.5}, {"mscale", 2.0}, {"mscale_all_dim", 0.5}}).attention_factor,
            1.5);
  EXPECT_EQ(rope({{"beta_fast", 16}, {"truncate", false}}).beta_fast, 16.0);
  EXPECT_TRUE(rope(json::object()).truncate);
  EXPECT_FALSE(rope({{"truncate", false}}).truncate);
  EXPECT_FALSE(rope({{"truncate", nullptr}}).truncate);
  EXPECT_EQ(rope({{"factor", nullptr}, {"original_max_position_embeddings", 1024}}).factor, 2.0);
}

TEST(ModelConfig, RefusesByNameWhatItDoesNotUnderstand) {
  const std::vector<std::pair<std::string, json>> table{
      {"hidden_act", "gelu"},
      {"use_sliding_window", true},
      {"sliding_window", 4096},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"layer_types", {"full_attention"}},
      {"attention_dropout", 0.1},
      {"partial_rotary_factor", 0.5},
      {"rope_interleaved", true},
      {"num_experts", 8},
      {"logits_scaling", 8.0},
      {"residual_multiplier", 0.22},
      {"embedding_multiplier", 12.0},
      {"final_logit_softcapping", 30.0},
      {"per_layer_config", {{"1", {{"sliding_window", 8}}}}},
      {"auto_map", {{"AutoModelForCausalLM", "modeling_own.OwnForCausalLM"}}},
      {"quantization_config", json::object({{"bits", 4}})},
      {"quantization_config", {{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}},
      {"quantization_config", {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}},
      {"num_key_value_heads", 3},
      {"vocab_size", -1},
      {"hidden_size", "big"},
      {"rms_norm_eps", 0.0},
      {"num_hidden_layers", 100000},
      {"head_dim", 15},
      {"attention_bias", "yes"},
      {"hidden_size", 60},
      {"residual_multiplier", 0.0},
      {"partial_rotary_factor", 0}};
  for (const auto& [key, value] : table) {
    const std::string sentence = refusal(with(small(), {{key, value}}));
    EXPECT_NE(sentence.find(key), std::string::npos) << key << ": " << sentence;
  }
  const std::vector<std::tuple<std::string, json, json>> families{
      {"attention_bias", qwen2(), false},
      {"attention_bias", mistral(), true},
      {"mlp_bias", qwen3(), true},
      {"head_dim", qwen3(), nullptr},
      {"use_sliding_window", mistral(), false},
      {"layer_types", mistral(), {"full_attention", "sliding_attention"}},
      {"layer_types", qwen2(), {"full_attention", "sliding_attention"}},
      {"layer_types", qwen3(), {"full_attention", "linear_attention"}}};
  for (const auto& [key, config, value] : families) {
    const std::string sentence = refusal(with(config, {{key, value}}));
    EXPECT_NE(sentence.find(key), std::string::npos) << key << ": " << sentence;
  }
  for (const auto& [architecture, type] : {std::pair{"MambaForCausalLM", "mamba"},
                                           {"LlamaForCausalLM", "granite"},
                                           {"MistralForSequenceClassification", "mistral"},
                                           {"Phi3ForCausalLM", "phi3"}}) {
    const std::string sentence = refusal(of_family(architecture, type));
    EXPECT_NE(sentence.find(architecture), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(type), std::string::npos) << sentence;
  }
  EXPECT_NE(refusal(json::array()).find("not a JSON object"), std::string::npos);
}

TEST(ModelConfig, RefusesRopeByName) {
  const json yarn{{"rope_type", "yarn"}, {"factor", 4.0}};
  const std::vector<std::pair<std::string, json>> table{
      {"longrope", {{"rope_type", "longrope"}, {"factor", 2.0}}},
      {"longrope", {{"type", "longrope"}, {"factor", 2.0}}},
      {"mrope_section", {{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}}},
      {"full_attention", {{"full_attention", {{"rope_type", "default"}}}}},
      {"partial_rotary_factor", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}},
      {"factor", {{"rope_type", "linear"}}},
      {"factor", {{"rope_type", "dynamic"}, {"factor", 0.5}}},
      {"high_freq_factor",
       {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 1.0}}},
      {"beta_fast", with(yarn, {{"beta_fast", 1}, {"beta_slow", 32}})},
      {"attention_factor", with(yarn, {{"attention_factor", -1}})}};
  for (const auto& [word, scaling] : table) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const std::string sentence = refusal(with(small(), {{key, scaling}}));
      EXPECT_NE(sentence.find(word), std::string::npos) << word << ": " << sentence;
      EXPECT_NE(sentence.find(key), std::string::npos) << word << ": " << sentence;
    }
  }
  EXPECT_NE(refusal(with(small(), {{"rope_scaling", yarn}, {"rope_parameters", {{"rope_type", "default"}}}}))
                .find("contradict"),
            std::string::npos);
}

TEST(ModelConfig, ProblemsAreReportedTogether) {
  try {
    parsed(with(small(), {{"head_dim", 15},
                          {"use_sliding_window", true},
                          {"rope_scaling", {{"rope_type", "longrope"}}},
                          {"hidden_act", "gelu"},
                          {"logits_scaling", 8}}));
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.sentences().size(), 5U) << error.what();
  }
}

TEST(ModelConfig, HarmlessKeysPass) {
  EXPECT_EQ(refusal(with(small(), {{"pretraining_tp", 2},
                                   {"use_cache", true},
                                   {"torch_dtype", "float16"},
                                   {"rope_interleaved", false},
                                   {"partial_rotary_factor", 1.0},
                                   {"logits_scaling", 1},
                                   {"attention_dropout", 0.0},
                                   {"quantization_config", nullptr},
                                   {"per_layer_config", json::object()},
                                   {"num_experts", 0},
                                   {"some_note", "anything"}})),
            "");
}

TEST(ModelConfig, RealConfigurationsLoad) {
  const char* data = std::getenv("RANKTUNE_TEST_DATA");
  const std::filesystem::path folder = std::filesystem::path(data == nullptr ? "" : data) / "configs";
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "no folder of real configurations";
  // Parameters as the models' pages give them, embeddings included once where they are tied.
  const std::map<std::string, std::int64_t> sizes{{"Llama-3.1-8B", 8'030'261'248},
                                                  {"Llama-3.2-1B-Instruct", 1'235'814'400},
                                                  {"Mistral-7B-Instruct-v0.3", 7'248'023'552},
                                                  {"Qwen2.5-0.5B-Instruct", 494'032'768},
                                                  {"Qwen2.5-7B-Instruct", 7'615'616'512},
                                                  {"Qwen3-8B", 8'190'735'360},
                                                  {"SmolLM2-135M", 134'515'008},
                                                  {"TinyLlama-1.1B-Chat-v1.0", 1'100'048'384}};
  std::size_t known = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ModelConfig config;
    EXPECT_NO_THROW(config = read_model_config(entry.path())) << entry.path();
    EXPECT_EQ(config.windows, std::vector<std::int64_t>{}) << entry.path();
    const auto size = sizes.find(entry.path().filename());
    if (size == sizes.end()) continue;
    EXPECT_EQ(config.parameters(), size->second) << entry.path();
    ++known;
  }
  EXPECT_EQ(known, sizes.size());
}

}  // namespace
}  // namespace ranktune::model
