// What a decoder-only Llama-like model is, read from a Hugging Face config.json. Everything that differs
// between the supported families is a value here; a key that would change the mathematics and is not
// understood is refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/rope.hpp"

namespace ranktune::model {

struct ModelConfig {
  std::string architecture;  // as Transformers calls it, for example "LlamaForCausalLM"
  std::string model_type;    // "llama", "mistral", "qwen2", "qwen3"
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tied_embeddings = false;
  bool qk_norm = false;   // RMSNorm over each head of q and k (Qwen3)
  bool qkv_bias = false;  // of the projections q, k and v
  bool o_bias = false;
  bool mlp_bias = false;  // of gate, up and down
  // Of each layer: how many tokens its attention sees, the token itself included; 0: all before it. Empty:
  // all layers see all.
  std::vector<std::int64_t> windows;
  RopeConfig rope;
  bool four_bit = false;                // the projections are held in NF4 (kernels/nf4.hpp)
  bool prequantised = false;            // and are so in the model folder already
  std::set<std::string> not_quantised;  // modules that are kept whole all the same, by their full name

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  std::int64_t window(std::int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)];
  }
  // Parameters of the frozen base model, input embedding included once.
  std::int64_t parameters() const;
};

// Sets four_bit. Throws UserError where a projection has other columns than a multiple of 64.
void quantise_to_four_bits(ModelConfig& config, const std::string& where);

// Reads and checks FOLDER/config.json. Throws UserError with a sentence for each problem, which names the
// file, the key and its value.
ModelConfig read_model_config(const std::filesystem::path& folder);
ModelConfig parse_model_config(const nlohmann::json& json, const std::string& where);

}  // namespace ranktune::model
