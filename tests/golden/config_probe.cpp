// What ranktune reads from each configuration of a JSON list: config_check.py compares it with Transformers.
//   config_probe FILE        prints a list of objects, {"refused": SENTENCES} or the values
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file.hpp"
#include "model/config.hpp"

namespace {

using ranktune::model::ModelConfig;

nlohmann::json values(const ModelConfig& config) {
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) windows.push_back(config.window(layer));
  return {{"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.max_positions},
          {"rms_norm_eps", config.rms_norm_eps},
          {"initializer_range", config.initializer_range},
          {"tie_word_embeddings", config.tied_embeddings},
          {"parameters", config.parameters()},
          {"qk_norm", config.qk_norm},
          {"qkv_bias", config.qkv_bias},
          {"o_bias", config.o_bias},
          {"mlp_bias", config.mlp_bias},
          {"windows", windows},
          {"rope_factor_of_table", config.rope.attention_factor},
          {"inverse_frequencies", ranktune::model::rope_inverse_frequencies(config.rope, config.head_dim)}};
}

nlohmann::json read(const nlohmann::json& object) {
  try {
    return values(ranktune::model::parse_model_config(object, "config.json"));
  } catch (const ranktune::UserError& error) {
    return {{"refused", error.sentences()}};
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: config_probe FILE\n";
    return 2;
  }
  nlohmann::json found = nlohmann::json::array();
  for (const nlohmann::json& object : nlohmann::json::parse(ranktune::read_file(argv[1]))) {
    found.push_back(read(object));
  }
  std::cout << found << '\n';
}
