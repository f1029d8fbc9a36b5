// Base weights with an adapter added to them, made one tensor at a time from the files of the base model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "export/adapter.hpp"
#include "export/safetensors_writer.hpp"
#include "model/config.hpp"
#include "model/lora.hpp"
#include "model/weights.hpp"

namespace ranktune::train {

class MergedWeights {
 public:
  // `files` stays as long as this. Throws UserError where files or adapter do not belong to the model.
  MergedWeights(const model::ModelConfig& config, const model::LoraConfig& lora,
                const model::WeightFiles& files, const exporting::Adapter& adapter);

  MergedWeights(const MergedWeights&) = delete;
  MergedWeights& operator=(const MergedWeights&) = delete;

  // All tensors in the order of the layers, with the 16-bit type of the base's files: BF16 where those hold
  // F32. A tied lm_head is not among them.
  const std::vector<exporting::TensorEntry>& entries() const { return entries_; }
  // W + scaling * B A in fp32 on the host, W decoded where the files hold it in 4 bits; the base tensor where
  // it is not adapted.
  at::Tensor value(const std::string& name) const;

 private:
  struct Pair {
    const model::FlatTensor* a = nullptr;
    const model::FlatTensor* b = nullptr;
  };
  at::Tensor matrix(const model::FlatTensor& tensor) const;

  const model::WeightFiles& files_;
  model::FlatLayout layout_;
  at::Tensor adapter_;  // flat, as the layout says
  double scaling_;
  std::map<std::string, Pair> pairs_;  // by the base tensor's name; point into layout_
  std::vector<exporting::TensorEntry> entries_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;  // by the base tensor's name
};

// Writes into FOLDER, which exists, the merged weights, each rounded once to its entry's type, in shards of
// at most `shard_bytes` that Transformers loads, and the configuration, tokenizer and licence files of
// `model_folder`. Holds one tensor at a time on the host.
inline constexpr std::uint64_t kShardBytes = 5'000'000'000;
void write_merged(const std::filesystem::path& folder, const MergedWeights& merged,
                  const std::filesystem::path& model_folder, std::uint64_t shard_bytes = kShardBytes);

}  // namespace ranktune::train
