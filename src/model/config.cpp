#include "model/config.hpp"

#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "base/error.hpp"
#include "base/file.hpp"

namespace ranktune::model {
namespace {

using nlohmann::json;

struct Family {
  std::string_view architecture;
  std::string_view model_type;
  bool qk_norm;
};
constexpr std::array<Family, 2> kFamilies{
    {{"LlamaForCausalLM", "llama", false}, {"Qwen3ForCausalLM", "qwen3", true}}};

// Typed access to the keys of one JSON object, with sentences that name file, key and value.
class Keys {
 public:
  Keys(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    const std::string value = object_.contains(key) ? " = " + object_.at(key).dump().substr(0, 80) : "";
    throw UserError(where_ + ": " + key + value + " " + why);
  }
  bool present(const std::string& key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  std::int64_t count(const std::string& key, std::int64_t most) const {
    if (!present(key)) refuse(key, "is missing");
    const json& value = object_.at(key);
    if (!value.is_number_integer()) refuse(key, "is not a whole number");
    const auto number = value.get<std::int64_t>();
    if (number < 1 || number > most) refuse(key, "is outside 1 to " + std::to_string(most));
    return number;
  }
  std::int64_t count_or(const std::string& key, std::int64_t fallback, std::int64_t most) const {
    return present(key) ? count(key, most) : fallback;
  }
  double positive(const std::string& key) const {
    if (!present(key)) refuse(key, "is missing");
    const json& value = object_.at(key);
    if (!value.is_number()) refuse(key, "is not a number");
    const auto number = value.get<double>();
    if (!(number > 0) || !std::isfinite(number)) refuse(key, "is not a positive number");
    return number;
  }
  double positive_or(const std::string& key, double fallback) const {
    return present(key) ? positive(key) : fallback;
  }
  bool flag_or(const std::string& key, bool fallback) const {
    if (!present(key)) return fallback;
    if (!object_.at(key).is_boolean()) refuse(key, "is not true or false");
    return object_.at(key).get<bool>();
  }
  std::string text_or(const std::string& key, const std::string& fallback) const {
    if (!present(key)) return fallback;
    if (!object_.at(key).is_string()) refuse(key, "is not a string");
    return object_.at(key).get<std::string>();
  }
  const json& object() const { return object_; }

 private:
  const json& object_;
  std::string where_;
};

// Both spellings: `rope_theta` beside `rope_scaling` {"rope_type" or "type"}, and `rope_parameters` with all
// of it.
RopeConfig parse_rope(const Keys& keys, const std::string& where) {
  RopeConfig rope;
  rope.theta = keys.positive_or("rope_theta", rope.theta);
  std::string key;
  if (keys.present("rope_parameters")) key = "rope_parameters";
  if (key.empty() && keys.present("rope_scaling")) key = "rope_scaling";
  if (key.empty()) return rope;
  const json& object = keys.object().at(key);
  if (!object.is_object()) keys.refuse(key, "is not an object");
  const Keys inner(object, where + ": " + key);
  rope.theta = inner.positive_or("rope_theta", rope.theta);
  const std::string type = inner.text_or("rope_type", inner.text_or("type", "default"));
  if (inner.present("partial_rotary_factor") && inner.positive("partial_rotary_factor") != 1.0) {
    inner.refuse("partial_rotary_factor", "is not supported; only 1 is");
  }
  if (type == "default") return rope;
  rope.factor = inner.positive("factor");
  if (type == "linear") {
    rope.type = RopeConfig::Type::linear;
  } else if (type == "llama3") {
    rope.type = RopeConfig::Type::llama3;
    rope.low_freq_factor = inner.positive("low_freq_factor");
    rope.high_freq_factor = inner.positive("high_freq_factor");
    rope.original_max_positions = inner.count("original_max_position_embeddings", std::int64_t{1} << 31);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      inner.refuse("high_freq_factor", "must be greater than low_freq_factor");
    }
  } else {
    throw UserError(where + ": " + key + " of type \"" + type +
                    "\" is not supported; default, linear and llama3 are");
  }
  return rope;
}

void refuse_other_mathematics(const Keys& keys) {
  if (keys.text_or("hidden_act", "silu") != "silu")
    keys.refuse("hidden_act", "is not supported; only \"silu\" is");
  for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    if (keys.flag_or(key, false)) keys.refuse(key, "is not supported");
  }
  if (keys.present("partial_rotary_factor") && keys.positive("partial_rotary_factor") != 1.0) {
    keys.refuse("partial_rotary_factor", "is not supported; only 1 is");
  }
  for (const char* key :
       {"quantization_config", "num_experts", "num_local_experts", "attn_logit_softcapping",
        "final_logit_softcapping", "logit_scale", "embedding_multiplier", "residual_multiplier"}) {
    if (keys.present(key)) keys.refuse(key, "is not supported");
  }
}

}  // namespace

std::int64_t ModelConfig::parameters() const {
  const std::int64_t attention =
      hidden_size * qkv_width() + q_width() * hidden_size + (qk_norm ? 2 * head_dim : 0);
  const std::int64_t layer = attention + 3 * hidden_size * intermediate_size + 2 * hidden_size;
  return layers * layer + hidden_size + vocab_size * hidden_size * (tied_embeddings ? 1 : 2);
}

ModelConfig parse_model_config(const json& object, const std::string& where) {
  if (!object.is_object()) throw UserError(where + ": is not a JSON object");
  const Keys keys(object, where);
  ModelConfig config;
  config.model_type = keys.text_or("model_type", "");
  if (keys.present("architectures")) {
    const json& list = object.at("architectures");
    if (!list.is_array() || list.empty() || !list.front().is_string())
      keys.refuse("architectures", "is not a list of names");
    config.architecture = list.front().get<std::string>();
  }
  const Family* family = nullptr;
  for (const Family& candidate : kFamilies) {
    if (config.architecture == candidate.architecture ||
        (config.architecture.empty() && config.model_type == candidate.model_type)) {
      family = &candidate;
    }
  }
  if (family == nullptr) {
    throw UserError(where + ": architecture \"" +
                    (config.architecture.empty() ? config.model_type : config.architecture) +
                    "\" is not supported; LlamaForCausalLM and Qwen3ForCausalLM are");
  }
  config.architecture = family->architecture;
  config.model_type = family->model_type;
  config.qk_norm = family->qk_norm;

  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  config.vocab_size = keys.count("vocab_size", kMost);
  config.hidden_size = keys.count("hidden_size", 1 << 18);
  config.intermediate_size = keys.count("intermediate_size", 1 << 20);
  config.layers = keys.count("num_hidden_layers", 4096);
  config.heads = keys.count("num_attention_heads", 4096);
  config.kv_heads = keys.count_or("num_key_value_heads", config.heads, 4096);
  if (config.heads % config.kv_heads != 0) {
    keys.refuse("num_key_value_heads",
                "does not divide num_attention_heads = " + std::to_string(config.heads));
  }
  if (!keys.present("head_dim") && config.hidden_size % config.heads != 0) {
    keys.refuse("num_attention_heads", "does not divide hidden_size = " + std::to_string(config.hidden_size));
  }
  config.head_dim = keys.count_or("head_dim", config.hidden_size / config.heads, 1024);
  if (config.head_dim % 2 != 0) keys.refuse("head_dim", "is odd; rotary embedding needs an even one");
  config.max_positions = keys.count_or("max_position_embeddings", 2048, std::int64_t{1} << 31);
  config.rms_norm_eps = keys.positive_or("rms_norm_eps", 1e-6);
  config.initializer_range = keys.positive_or("initializer_range", 0.02);
  config.tied_embeddings = keys.flag_or("tie_word_embeddings", false);
  config.rope = parse_rope(keys, where);
  refuse_other_mathematics(keys);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  const std::string text = read_file(path);
  const json object = json::parse(text, nullptr, false);
  if (object.is_discarded()) throw UserError(path.string() + ": is not valid JSON");
  return parse_model_config(object, path.string());
}

std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    // fp32 as Transformers: its frequencies are fp32 numbers, and positions multiply them in fp32.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    float frequency = 1.0F / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.type == RopeConfig::Type::linear) {
      frequency /= static_cast<float>(rope.factor);
    } else if (rope.type == RopeConfig::Type::llama3) {
      const auto original = static_cast<double>(rope.original_max_positions);
      const double wavelength = 2.0 * std::numbers::pi / frequency;
      if (wavelength > original / rope.low_freq_factor) {
        frequency = static_cast<float>(frequency / rope.factor);
      } else if (wavelength >= original / rope.high_freq_factor) {
        const double smooth =
            (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        frequency = static_cast<float>((1.0 - smooth) * frequency / rope.factor + smooth * frequency);
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace ranktune::model
