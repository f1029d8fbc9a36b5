#include "model/config.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "base/error.hpp"
#include "base/file.hpp"

namespace ranktune::model {
namespace {

using nlohmann::json;

// What a family of models is beyond the values of its config.json, and what Transformers assumes where a key
// is absent.
struct Family {
  enum class Window { never, in_all_layers, in_upper_layers };
  std::string_view architecture;
  std::string_view model_type;
  bool qk_norm;
  bool qkv_bias;        // always
  bool attention_bias;  // the key of this name gives biases to q, k, v and o
  bool mlp_bias;        // the key of this name gives biases to gate, up and down
  Window window;
  std::int64_t kv_heads;  // 0: num_attention_heads
  std::int64_t head_dim;  // 0: hidden_size / num_attention_heads
  std::int64_t max_positions;
};
using Window = Family::Window;
constexpr std::array<Family, 4> kFamilies{
    {{"LlamaForCausalLM", "llama", false, false, true, true, Window::never, 0, 0, 2048},
     {"MistralForCausalLM", "mistral", false, false, false, false, Window::in_all_layers, 8, 0, 131072},
     {"Qwen2ForCausalLM", "qwen2", false, true, false, false, Window::in_upper_layers, 32, 0, 32768},
     {"Qwen3ForCausalLM", "qwen3", true, false, true, false, Window::in_upper_layers, 32, 128, 32768}}};

// A key of other models whose mathematics is not ours, and the only values with which it changes nothing.
// null, false and an empty list or object always are such values, and so is 0 where none are named.
struct OtherMathematics {
  const char* key;
  std::vector<json> neutral;
};
const std::vector<OtherMathematics>& other_mathematics() {
  static const std::vector<OtherMathematics> table{
      {"hidden_act", {"silu", "swish"}},
      {"hidden_activation", {"silu", "swish"}},
      {"attention_dropout", {}},
      {"partial_rotary_factor", {1}},
      {"rotary_pct", {1}},
      {"rope_interleaved", {}},
      {"use_mrope", {}},
      {"no_rope_layers", {}},
      {"no_rope_layer_interval", {}},
      {"embedding_multiplier", {1}},
      {"residual_multiplier", {1}},
      {"attention_multiplier", {}},
      {"logits_scaling", {1}},
      {"logit_scale", {1}},
      {"lm_head_multiplier", {1}},
      {"scale_emb", {1}},
      {"scale_depth", {}},
      {"dim_model_base", {}},
      {"query_pre_attn_scalar", {}},
      {"attn_logit_softcapping", {}},
      {"final_logit_softcapping", {}},
      {"attention_chunk_size", {}},
      {"clip_qkv", {}},
      {"alibi", {}},
      {"use_alibi", {}},
      {"qk_layernorm", {}},
      {"use_qk_norm", {}},
      {"num_experts", {}},
      {"num_local_experts", {}},
      {"n_routed_experts", {}},
      {"per_layer_config", {}},
      {"is_encoder_decoder", {}},
      {"add_cross_attention", {}},
  };
  return table;
}

bool changes_nothing(const json& value, const std::vector<json>& neutral) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number() && neutral.empty()) return value.get<double>() == 0;
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty()) ||
         std::find(neutral.begin(), neutral.end(), value) != neutral.end();
}

void refuse_other_mathematics(const ConfigKeys& keys) {
  std::vector<std::string> problems;
  for (const OtherMathematics& other : other_mathematics()) {
    if (!keys.contains(other.key)) continue;
    const auto& neutral = other.neutral;
    if (changes_nothing(keys.object().at(other.key), neutral)) continue;
    problems.push_back(keys.sentence(
        other.key, "is not supported" + (neutral.empty() ? "" : "; only " + neutral.front().dump() + " is")));
  }
  if (keys.present("auto_map") && keys.object().at("auto_map").contains("AutoModelForCausalLM")) {
    problems.push_back(keys.sentence("auto_map",
                                     "names Python code of the model's own, whose mathematics ranktune does "
                                     "not know; remove the key if the model is one of Transformers'"));
  }
  if (!problems.empty()) throw UserError(problems);
}

// model_type decides, as in Transformers' AutoModelForCausalLM; architectures may not contradict it.
const Family& family_of(const ConfigKeys& keys) {
  const std::string type = keys.text_or("model_type", "");
  std::string architecture;
  if (keys.present("architectures")) {
    const json& list = keys.object().at("architectures");
    if (!list.is_array() || list.empty() || !list.front().is_string())
      keys.refuse("architectures", "is not a list of names");
    architecture = list.front().get<std::string>();
  }
  for (const Family& family : kFamilies) {
    const bool same_type = type.empty() || type == family.model_type;
    const bool same_architecture = architecture.empty() || architecture == family.architecture;
    if (same_type && same_architecture && !(type.empty() && architecture.empty())) return family;
  }
  std::string supported;
  for (const Family& family : kFamilies) {
    supported += std::string(supported.empty() ? "" : ", ") + std::string(family.architecture) + " (" +
                 std::string(family.model_type) + ")";
  }
  throw UserError(keys.where() + ": architecture \"" + architecture + "\" of model_type \"" + type +
                  "\" is not supported; these are: " + supported);
}

void parse_sizes(const ConfigKeys& keys, const Family& family, ModelConfig& config) {
  config.vocab_size = keys.count("vocab_size", std::int64_t{1} << 24);
  config.hidden_size = keys.count("hidden_size", 1 << 18);
  config.intermediate_size = keys.count("intermediate_size", 1 << 20);
  config.layers = keys.count("num_hidden_layers", 4096);
  config.heads = keys.count("num_attention_heads", 4096);
  // Present but null means num_attention_heads in each family.
  const std::int64_t kv_heads =
      family.kv_heads == 0 || keys.contains("num_key_value_heads") ? config.heads : family.kv_heads;
  config.kv_heads = keys.count_or("num_key_value_heads", kv_heads, 4096);
  if (config.heads % config.kv_heads != 0) {
    keys.refuse("num_key_value_heads",
                "(" + std::to_string(config.kv_heads) +
                    ") does not divide num_attention_heads = " + std::to_string(config.heads));
  }
  if (family.head_dim == 0 && !keys.present("head_dim") && config.hidden_size % config.heads != 0) {
    keys.refuse("num_attention_heads", "does not divide hidden_size = " + std::to_string(config.hidden_size));
  }
  const std::int64_t head_dim = family.head_dim == 0 ? config.hidden_size / config.heads : family.head_dim;
  if (family.head_dim != 0 && keys.contains("head_dim") && !keys.present("head_dim")) {
    keys.refuse("head_dim", "is not a number; leave the key out if the heads have " +
                                std::to_string(family.head_dim) + " dimensions");
  }
  config.head_dim = keys.count_or("head_dim", head_dim, 1024);
  if (config.head_dim % 2 != 0) {
    keys.refuse(keys.present("head_dim") ? "head_dim" : "hidden_size",
                "makes heads of " + std::to_string(config.head_dim) +
                    " dimensions, an odd number; rotary embedding needs an even one");
  }
  config.max_positions =
      keys.count_or("max_position_embeddings", family.max_positions, std::int64_t{1} << 31);
  config.rms_norm_eps = keys.positive_or("rms_norm_eps", 1e-6);
  config.initializer_range = keys.positive_or("initializer_range", 0.02);
  config.tied_embeddings = keys.flag_or("tie_word_embeddings", false);
}

void parse_biases(const ConfigKeys& keys, const Family& family, ModelConfig& config) {
  const bool attention = keys.flag_or("attention_bias", family.qkv_bias);
  const bool mlp = keys.flag_or("mlp_bias", false);
  const std::string never = "is not a choice that model_type \"" + config.model_type + "\" has";
  if (!family.attention_bias && attention != family.qkv_bias) keys.refuse("attention_bias", never);
  if (!family.mlp_bias && mlp) keys.refuse("mlp_bias", never);
  config.qkv_bias = attention;
  config.o_bias = attention && family.attention_bias;
  config.mlp_bias = mlp;
}

// The default of Mistral and Qwen where the key is absent; null is none.
constexpr std::int64_t kDefaultWindow = 4096;

// 0: none.
std::int64_t window_of(const ConfigKeys& keys, const Family& family) {
  const bool wanted = keys.flag_or("use_sliding_window", family.window == Window::in_all_layers);
  const bool off = keys.present("use_sliding_window") || family.window == Window::in_upper_layers;
  if (family.window != Window::in_all_layers && !wanted && off) return 0;
  const bool by_default = family.window != Window::never && !keys.contains("sliding_window");
  const std::int64_t window =
      keys.count_or("sliding_window", by_default ? kDefaultWindow : 0, std::int64_t{1} << 31);
  if (family.window == Window::never && window != 0) {
    keys.refuse("sliding_window",
                "is not a choice that model_type \"" + std::string(family.model_type) + "\" has");
  }
  if (keys.present("use_sliding_window") && wanted != (window != 0)) {
    keys.refuse("use_sliding_window", "contradicts sliding_window");
  }
  return window;
}

// Whether each layer is a "sliding_attention" in layer_types.
std::vector<bool> sliding_layers(const ConfigKeys& keys, std::int64_t layers) {
  const json& types = keys.object().at("layer_types");
  if (!types.is_array() || static_cast<std::int64_t>(types.size()) != layers) {
    keys.refuse("layer_types", "is not a list of " + std::to_string(layers) + " names");
  }
  std::vector<bool> sliding;
  for (const json& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      keys.refuse("layer_types", "names other layers than full_attention and sliding_attention");
    }
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

// In Qwen layer_types says which layers have the window, or else they are those from max_window_layers on.
void parse_windows(const ConfigKeys& keys, const Family& family, ModelConfig& config) {
  const std::int64_t window = window_of(keys, family);
  const bool upper = family.window == Window::in_upper_layers;
  const std::int64_t first = upper ? keys.count_or("max_window_layers", 28, 1 << 20, 0) : 0;
  std::vector<bool> windowed;
  for (std::int64_t l = 0; l < config.layers; ++l) windowed.push_back(window != 0 && l >= first);
  if (keys.present("layer_types")) {
    const std::vector<bool> sliding = sliding_layers(keys, config.layers);
    if (upper && window != 0) windowed = sliding;
    if (sliding != windowed) keys.refuse("layer_types", "contradicts use_sliding_window and sliding_window");
  }
  if (std::find(windowed.begin(), windowed.end(), true) == windowed.end()) return;
  for (const bool has : windowed) config.windows.push_back(has ? window : 0);
}

// What bitsandbytes has done to the weights of the folder: NF4 with double quantisation or nothing. Which
// modules it left alone is seen in the files.
void parse_quantisation(const ConfigKeys& keys, ModelConfig& config) {
  if (!keys.present("quantization_config")) return;
  const json& section = keys.object().at("quantization_config");
  if (changes_nothing(section, {})) return;
  if (!section.is_object()) keys.refuse("quantization_config", "is not an object");
  const std::string where = keys.where() + ": quantization_config";
  const ConfigKeys own(section, where);
  if (own.text_or("quant_method", "") != "bitsandbytes" || !own.flag_or("load_in_4bit", false)) {
    keys.refuse("quantization_config",
                "is not supported; only 4-bit weights of bitsandbytes (quant_method \"bitsandbytes\" with "
                "load_in_4bit = true) can be read");
  }
  const auto only = [&](const char* key, const json& wanted, const json& absent) {
    const json found = own.present(key) ? section.at(key) : absent;
    if (found != wanted) {
      throw UserError(where + ": " + key + " = " + found.dump() + " is not supported; only " + wanted.dump() +
                      " is");
    }
  };
  only("bnb_4bit_quant_type", "nf4", "fp4");
  only("bnb_4bit_use_double_quant", true, false);
  only("bnb_4bit_quant_storage", "uint8", "uint8");
  quantise_to_four_bits(config, keys.where());
  config.prequantised = true;
}

}  // namespace

std::int64_t ModelConfig::parameters() const {
  const std::int64_t attention =
      hidden_size * qkv_width() + q_width() * hidden_size + (qk_norm ? 2 * head_dim : 0);
  const std::int64_t biases = (qkv_bias ? qkv_width() : 0) + (o_bias ? hidden_size : 0) +
                              (mlp_bias ? 2 * intermediate_size + hidden_size : 0);
  const std::int64_t layer = attention + 3 * hidden_size * intermediate_size + 2 * hidden_size + biases;
  return layers * layer + hidden_size + vocab_size * hidden_size * (tied_embeddings ? 1 : 2);
}

void quantise_to_four_bits(ModelConfig& config, const std::string& where) {
  constexpr std::int64_t kBlock = 64;
  for (const auto& [key, columns] : {std::pair{"hidden_size", config.hidden_size},
                                     std::pair{"intermediate_size", config.intermediate_size},
                                     std::pair{"num_attention_heads * head_dim", config.q_width()}}) {
    if (columns % kBlock != 0) {
      throw UserError(where + ": " + key + " = " + std::to_string(columns) +
                      " is not a multiple of 64, which 4-bit weights need; leave --load_in_4bit out");
    }
  }
  config.four_bit = true;
}

ModelConfig parse_model_config(const json& object, const std::string& where) {
  if (!object.is_object()) throw UserError(where + ": is not a JSON object");
  const ConfigKeys keys(object, where);
  const Family& family = family_of(keys);
  ModelConfig config;
  config.architecture = family.architecture;
  config.model_type = family.model_type;
  config.qk_norm = family.qk_norm;
  std::vector<std::string> problems;
  const auto section = [&problems](const std::function<void()>& parse) {
    try {
      parse();
    } catch (const UserError& error) {
      problems.insert(problems.end(), error.sentences().begin(), error.sentences().end());
    }
  };
  section([&] { parse_sizes(keys, family, config); });
  section([&] { parse_biases(keys, family, config); });
  section([&] { parse_windows(keys, family, config); });
  section([&] {
    config.rope = parse_rope(keys, config.max_positions);
    if (config.rope.type == RopeConfig::Type::dynamic && config.head_dim == 2) {
      keys.refuse("head_dim", "is too small for dynamic rotary embedding");
    }
  });
  section([&] { refuse_other_mathematics(keys); });
  section([&] { parse_quantisation(keys, config); });
  if (!problems.empty()) throw UserError(problems);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  const std::string text = read_file(path);
  const json object = json::parse(text, nullptr, false);
  if (object.is_discarded()) throw UserError(path.string() + ": is not valid JSON");
  return parse_model_config(object, path.string());
}

}  // namespace ranktune::model
