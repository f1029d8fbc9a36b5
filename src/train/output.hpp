// What a run leaves behind for others: the adapter folder and the model in other forms.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "export/adapter.hpp"
#include "model/config.hpp"
#include "train/merge.hpp"

namespace ranktune::train {

// Tells this process's temporary directories from others': host, pid and a random number.
std::string attempt_name();

// FOLDER with the adapter, replaced as a whole.
void save_adapter(const std::filesystem::path& folder, const exporting::Adapter& adapter,
                  const std::filesystem::path& tokenizer_folder);

// What a model is written as.
struct ModelForms {
  bool merged = false;
  bool adapter = false;
  std::vector<std::string> gguf;  // types: model-TYPE.gguf each
  std::uint64_t shard_bytes = kShardBytes;
  bool need_base() const { return merged || !gguf.empty(); }
};

// FOLDER with all of the forms, appearing as a whole. `merged` may be null where no form needs the base.
// Throws UserError where the disk has no room.
void save_model(const std::filesystem::path& folder, const ModelForms& forms,
                const exporting::Adapter& adapter, const MergedWeights* merged,
                const model::ModelConfig& config, const std::filesystem::path& model_folder);

}  // namespace ranktune::train
