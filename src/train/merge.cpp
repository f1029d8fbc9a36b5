#include "train/merge.hpp"

#include <ATen/ops/mm.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "export/output_file.hpp"
#include "train/loading.hpp"

namespace ranktune::train {
namespace {

namespace fs = std::filesystem;

// The name of the base tensor that a trained matrix is added to.
std::string base_name(const std::string& trained) {
  static const std::string prefix = "base_model.model.";
  return trained.substr(prefix.size(), trained.rfind(".lora_") - prefix.size()) + ".weight";
}

// Files beside the weights that belong to a model.
bool goes_along(const std::string& name) {
  static const std::vector<std::string> exact{"generation_config.json",
                                              "tokenizer.json",
                                              "tokenizer_config.json",
                                              "tokenizer.model",
                                              "added_tokens.json",
                                              "special_tokens_map.json",
                                              "vocab.json",
                                              "merges.txt",
                                              "chat_template.jinja"};
  if (std::find(exact.begin(), exact.end(), name) != exact.end()) return true;
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return upper.starts_with("LICENSE") || upper.starts_with("LICENCE") || upper.starts_with("NOTICE");
}

// config.json with the type that the merged weights have, which are no longer quantised.
std::string config_text(const fs::path& from, const std::string& dtype) {
  auto config = nlohmann::ordered_json::parse(read_file(from));
  config.erase("quantization_config");
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype == "F16" ? "float16" : "bfloat16";
  return config.dump(2) + "\n";
}

}  // namespace

MergedWeights::MergedWeights(const model::ModelConfig& config, const model::LoraConfig& lora,
                             const model::WeightFiles& files, const exporting::Adapter& adapter)
    : files_(files),
      layout_(model::make_flat_layout(config, lora)),
      adapter_(adapter_parameters(layout_, adapter)),
      scaling_(lora.scaling()) {
  model::ModelConfig with_files = config;
  find_whole_modules(with_files, files);
  check_weights(with_files, files);
  for (const model::FlatTensor& tensor : layout_.tensors) {
    Pair& pair = pairs_[base_name(tensor.name)];
    (tensor.is_a ? pair.a : pair.b) = &tensor;
  }
  const std::string dtype = files.view("model.embed_tokens.weight").dtype == "F16" ? "F16" : "BF16";
  for (const model::WeightSlot& slot : weight_shapes(config)) {
    entries_.push_back({slot.name, dtype, slot.sizes()});
    shapes_[slot.name] = slot.sizes();
  }
}

at::Tensor MergedWeights::matrix(const model::FlatTensor& tensor) const {
  return adapter_.narrow(0, tensor.offset, tensor.rows * tensor.columns).view({tensor.rows, tensor.columns});
}

at::Tensor MergedWeights::value(const std::string& name) const {
  at::Tensor weight = host_weight(files_, name, shapes_.at(name));
  const auto pair = pairs_.find(name);
  if (pair == pairs_.end()) return weight;
  return at::mm(matrix(*pair->second.b), matrix(*pair->second.a)).mul_(scaling_).add_(weight);
}

void write_merged(const fs::path& folder, const MergedWeights& merged, const fs::path& model_folder,
                  std::uint64_t shard_bytes) {
  exporting::write_sharded_safetensors(
      folder, merged.entries(),
      [&](const exporting::TensorEntry& entry, const exporting::Sink& sink) {
        const at::Tensor rounded =
            merged.value(entry.name).to(entry.dtype == "F16" ? at::kHalf : at::kBFloat16);
        sink({static_cast<const std::byte*>(rounded.data_ptr()), rounded.nbytes()});
      },
      shard_bytes);
  exporting::write_text_file(folder / "config.json",
                             config_text(model_folder / "config.json", merged.entries().front().dtype));
  for (const auto& file : fs::directory_iterator(model_folder)) {
    const std::string name = file.path().filename();
    if (file.is_regular_file() && goes_along(name)) fs::copy_file(file.path(), folder / name);
  }
}

}  // namespace ranktune::train
