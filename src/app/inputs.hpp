// Everything a training run reads, found and checked before any of it is loaded onto a device.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/options.hpp"
#include "data/records.hpp"
#include "data/token_store.hpp"
#include "data/tokenizer.hpp"
#include "export/adapter.hpp"
#include "model/config.hpp"
#include "model/lora.hpp"
#include "model/weights.hpp"
#include "train/memory_plan.hpp"

namespace ranktune::app {

struct Inputs {
  std::filesystem::path model_folder;
  model::ModelConfig model;
  std::optional<data::Tokenizer> tokenizer;
  std::unique_ptr<model::WeightFiles> weights;  // null with --load_format dummy
  data::Records records;
  data::Records eval_records;  // of --eval_dataset
  std::optional<std::filesystem::path> init_adapter;
  model::LoraConfig lora;
  exporting::AdapterConfig adapter;  // what adapter_config.json will say
};

// Finds and checks model, tokenizer, weights' headers, datasets (those that have a name) and adapter. Every
// problem found is added to `problems` as a sentence; the result is complete only where none was added.
Inputs check_inputs(const TrainOptions& options, std::vector<std::string>& problems);

model::LoraConfig lora_config(const exporting::AdapterConfig& adapter);

// The prompt of the dataset's rows; a chat template is the model's, if it has a folder. Throws UserError
// where --prompt_template is not for their format.
data::PromptForm prompt_form_of(const TrainOptions& options, data::RowFormat format,
                                const std::filesystem::path& model_folder);

// How rows become tokens. Throws UserError as prompt_form_of does.
data::TokenizeOptions tokenize_options(const TrainOptions& options, const std::filesystem::path& model_folder,
                                       const data::Records& records, int threads);

// Tokens of a pack with --packing, else 0.
std::int64_t pack_length_of(const TrainOptions& options);

// What the memory plan is asked for: --use_gradient_checkpointing, and --memory_limit in bytes (0: none).
train::Recompute recompute_of(const TrainOptions& options);
std::int64_t memory_limit_of(const TrainOptions& options);

}  // namespace ranktune::app
