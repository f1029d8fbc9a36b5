#include "export/adapter_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/file.hpp"

namespace ranktune::exporting {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kConfigBound = 1U << 20U;
constexpr std::int64_t kRankBound = 65'536;

// Keys that say nothing about the numbers of the adapter, or only how a feature refused elsewhere would work.
const std::set<std::string>& neutral_keys() {
  static const std::set<std::string> keys{"auto_mapping",        "base_model_name_or_path",
                                          "ensure_weight_tying", "inference_mode",
                                          "megatron_core",       "peft_version",
                                          "qalora_group_size",   "revision",
                                          "runtime_config"};
  return keys;
}

// Keys that are read below.
const std::set<std::string>& read_keys() {
  static const std::set<std::string> keys{"peft_type",  "task_type",      "r",
                                          "lora_alpha", "lora_dropout",   "use_rslora",
                                          "bias",       "target_modules", "init_lora_weights"};
  return keys;
}

// A feature is off when its key is absent, null, false, empty or "none".
bool is_off(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) || value == json("") ||
         value == "none";
}

// A value as a message may show it.
std::string shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.dump(-1, ' ', true).substr(0, 80);
}

// Reads the fields one after another and collects all problems.
class ConfigReader {
 public:
  ConfigReader(const json& content, std::string path) : content_(content), path_(std::move(path)) {}

  AdapterConfig read() {
    AdapterConfig config;
    expect_text("peft_type", "LORA", false);
    expect_text("task_type", "CAUSAL_LM", true);
    expect_text("bias", "none", true);
    const json base = value("base_model_name_or_path");
    if (base.is_string()) config.base_model_name_or_path = base;
    config.r = rank();
    config.lora_alpha =
        number("lora_alpha", config.lora_alpha, [](double x) { return std::isfinite(x) && x > 0; });
    config.lora_dropout = number("lora_dropout", 0, [](double x) { return x >= 0 && x < 1; });
    config.use_rslora = value("use_rslora") == true;
    if (!is_off(value("use_rslora")) && !config.use_rslora)
      problem("use_rslora", "is neither true nor false");
    config.target_modules = target_modules();
    check_initialisation();
    check_other_features();
    if (!problems_.empty()) throw UserError(problems_);
    return config;
  }

 private:
  json value(const std::string& key) const { return content_.contains(key) ? content_.at(key) : json(); }

  void problem(const std::string& key, const std::string& what) {
    problems_.push_back(fmt::format("{}: {} {}", path_, key.substr(0, 80), what));
  }

  void expect_text(const std::string& key, const std::string& expected, bool may_be_absent) {
    const json found = value(key);
    if (found == expected || (may_be_absent && found.is_null())) return;
    problem(key, fmt::format("is {}, only {} is supported", shown(found), expected));
  }

  std::int64_t rank() {
    const json found = value("r");
    if (found.is_number_integer() && found >= 1 && found <= kRankBound) return found;
    problem("r", fmt::format("is {}, expected is an integer of at least 1", shown(found)));
    return 1;
  }

  template <typename Accept>
  double number(const std::string& key, double otherwise, Accept accept) {
    const json found = value(key);
    if (found.is_null()) return otherwise;
    if (found.is_number() && accept(found.get<double>())) return found;
    problem(key, fmt::format("is {}, which is out of range", shown(found)));
    return otherwise;
  }

  // In the order of projections(), whatever the order in the file (PEFT writes a set).
  std::vector<std::string> target_modules() {
    const json found = value("target_modules");
    std::set<std::string> wanted;
    for (const auto& projection : projections()) {
      if (found == "all-linear") wanted.emplace(projection.name);
    }
    if (found.is_array()) {
      for (const auto& item : found) {
        if (is_projection(item)) {
          wanted.insert(item.get<std::string>());
        } else {
          problem("target_modules",
                  fmt::format("names {}, which is none of the seven projections", shown(item)));
        }
      }
    }
    if (wanted.empty())
      problem("target_modules", fmt::format("is {}, expected is a list or \"all-linear\"", shown(found)));
    std::vector<std::string> ordered;
    for (const auto& projection : projections()) {
      if (wanted.contains(std::string(projection.name))) ordered.emplace_back(projection.name);
    }
    return ordered;
  }

  static bool is_projection(const json& item) {
    return item.is_string() &&
           std::any_of(projections().begin(), projections().end(), [&](const Projection& projection) {
             return item.get_ref<const std::string&>() == projection.name;
           });
  }

  // Other initialisations change the base weights as well, which are not in the adapter.
  void check_initialisation() {
    const json found = value("init_lora_weights");
    if (found.is_null() || found.is_boolean() || found == "gaussian" || found == "orthogonal") return;
    problem("init_lora_weights",
            fmt::format("is {}, which is not supported: it changes the base weights", shown(found)));
  }

  void check_other_features() {
    for (const auto& [key, found] : content_.items()) {
      if (neutral_keys().contains(key) || read_keys().contains(key) || is_off(found)) continue;
      problem(key, "is set, which is not supported");
    }
  }

  const json& content_;
  std::string path_;
  std::vector<std::string> problems_;
};

}  // namespace

const std::vector<Projection>& projections() {
  static const std::vector<Projection> all{
      {"q_proj", "self_attn"}, {"k_proj", "self_attn"}, {"v_proj", "self_attn"}, {"o_proj", "self_attn"},
      {"gate_proj", "mlp"},    {"up_proj", "mlp"},      {"down_proj", "mlp"}};
  return all;
}

std::string config_text(const AdapterConfig& config) {
  json content{{"alpha_pattern", json::object()},
               {"auto_mapping", nullptr},
               {"base_model_name_or_path", config.base_model_name_or_path},
               {"bias", "none"},
               {"fan_in_fan_out", false},
               {"inference_mode", true},
               {"init_lora_weights", true},
               {"layers_pattern", nullptr},
               {"layers_to_transform", nullptr},
               {"lora_alpha", config.lora_alpha},
               {"lora_dropout", config.lora_dropout},
               {"modules_to_save", nullptr},
               {"peft_type", "LORA"},
               {"r", config.r},
               {"rank_pattern", json::object()},
               {"revision", nullptr},
               {"target_modules", config.target_modules},
               {"task_type", "CAUSAL_LM"},
               {"use_dora", false},
               {"use_rslora", config.use_rslora}};
  // PEFT declares lora_alpha as an integer; some readers insist.
  if (std::nearbyint(config.lora_alpha) == config.lora_alpha && std::abs(config.lora_alpha) < 1e15) {
    content["lora_alpha"] = static_cast<std::int64_t>(config.lora_alpha);
  }
  return content.dump(2) + "\n";
}

AdapterConfig read_adapter_config(const std::filesystem::path& folder) {
  const auto path = folder / "adapter_config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw UserError(fmt::format("{} is no PEFT adapter: it has no adapter_config.json", folder.string()));
  }
  if (std::filesystem::file_size(path, error) > kConfigBound) {
    throw UserError(fmt::format("{} is too long to be an adapter's configuration", path.string()));
  }
  const json content = json::parse(read_file(path), nullptr, false);
  if (!content.is_object()) throw UserError(fmt::format("{} is no valid JSON object", path.string()));
  return ConfigReader(content, path.string()).read();
}

}  // namespace ranktune::exporting
