// PEFT adapter folders: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ranktune::exporting {

struct AdapterConfig {
  std::string base_model_name_or_path;
  std::int64_t r = 16;
  double lora_alpha = 16;
  double lora_dropout = 0;
  bool use_rslora = false;
  std::vector<std::string> target_modules;  // subset of q_proj ... down_proj
};

// One fp32 tensor with its PEFT name, for example
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
struct AdapterTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

struct Adapter {
  AdapterConfig config;
  std::vector<AdapterTensor> tensors;
};

// Writes both files and copies tokenizer files (tokenizer.json, tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja, those that exist in `tokenizer_folder`) into `folder`, which
// exists. Throws Failure.
void write_adapter(const std::filesystem::path& folder, const Adapter& adapter,
                   const std::filesystem::path& tokenizer_folder);

// Reads a PEFT folder (F32, F16 or BF16 tensors, converted to fp32). Throws UserError naming what is not
// supported: peft_type other than LORA, rank_pattern, alpha_pattern, modules_to_save, layers_to_transform,
// lora_bias, bias, use_dora, ..., unknown target modules (target_modules "all-linear" or a list), shapes that
// contradict r.
Adapter read_adapter(const std::filesystem::path& folder);

// Only adapter_config.json, with the same checks (for reporting problems before anything is loaded).
AdapterConfig read_adapter_config(const std::filesystem::path& folder);

}  // namespace ranktune::exporting
