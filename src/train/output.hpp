// What a run leaves behind for others: the adapter folder and the merged model.
#pragma once

#include <filesystem>
#include <string>

#include "export/adapter.hpp"
#include "model/decoder.hpp"

namespace ranktune::train {

// Tells this process's temporary directories from others': host, pid and a random number.
std::string attempt_name();

// FOLDER with the adapter, replaced as a whole.
void save_adapter(const std::filesystem::path& folder, const exporting::Adapter& adapter,
                  const std::filesystem::path& tokenizer_folder);

// FOLDER with base + scaling * B A, added in fp32 and rounded once to bf16, in shards of 5 GB that
// Transformers loads; config, generation config and tokenizer files are copied from `model_folder`. Holds one
// tensor at a time on the host.
void save_merged(const std::filesystem::path& folder, model::Decoder& decoder, const at::Tensor& master,
                 const std::filesystem::path& model_folder);

}  // namespace ranktune::train
