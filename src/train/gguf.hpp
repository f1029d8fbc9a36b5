// A merged model as a GGUF file for llama.cpp and its kin: names, keys and the order of rows that its own
// convert_hf_to_gguf.py gives them.
#pragma once

#include <filesystem>
#include <string>

#include "export/gguf_writer.hpp"
#include "model/config.hpp"
#include "train/merge.hpp"

namespace ranktune::train {

// f32, f16, bf16, q8_0. Throws Failure for another name.
exporting::GgufType gguf_type(const std::string& name);

// Throws UserError, with a sentence for each problem, where the file could not say what the model or its
// tokenizer does: sliding windows, dynamic and yarn RoPE, biases that llama.cpp's architecture has no place
// for, a tokenizer that is not byte-level BPE with a pre-tokenizer that llama.cpp knows.
void check_gguf(const model::ModelConfig& config, const std::filesystem::path& model_folder);

// Matrices in the type named, norms and biases in F32. A matrix whose rows are no whole blocks of q8_0 is
// F16. Holds one tensor at a time. Throws as check_gguf.
void write_gguf(const std::filesystem::path& path, const std::string& type, const MergedWeights& merged,
                const model::ModelConfig& config, const std::filesystem::path& model_folder);

// The keys "tokenizer.*". Throws UserError as above.
void add_gguf_tokenizer(exporting::GgufFile& file, std::int64_t vocab_size,
                        const std::filesystem::path& model_folder);

}  // namespace ranktune::train
