// What a decoder-only Llama-like model is, read from a Hugging Face config.json. Everything that differs
// between the supported families is a value here; a key that would change the mathematics and is not
// understood is refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ranktune::model {

// Rotary position embedding (Su et al. 2021) and how its frequencies are stretched beyond the trained
// context.
struct RopeConfig {
  enum class Type { standard, linear, llama3 };
  Type type = Type::standard;
  double theta = 10000.0;
  double factor = 1.0;
  // llama3 (Grattafiori et al. 2024, Transformers' `_compute_llama3_parameters`)
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_positions = 0;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", "Qwen3ForCausalLM"
  std::string model_type;    // "llama", "qwen3"
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
  bool qk_norm = false;  // RMSNorm over each head of q and k (Qwen3)
  RopeConfig rope;

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  // Parameters of the frozen base model, input embedding included once.
  std::int64_t parameters() const;
};

// Reads and checks FOLDER/config.json. Throws UserError that names the file, the key and its value.
ModelConfig read_model_config(const std::filesystem::path& folder);
ModelConfig parse_model_config(const nlohmann::json& json, const std::string& where);

// Inverse frequencies [head_dim / 2] after scaling, as Transformers computes them.
std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim);

}  // namespace ranktune::model
