#include "train/output.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <array>
#include <random>

#include "store/atomic_directory.hpp"
#include "train/gguf.hpp"

namespace ranktune::train {

std::string attempt_name() {
  static const std::string name = [] {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    return fmt::format("{}-{}-{:08x}", host.data(), ::getpid(), std::random_device{}());
  }();
  return name;
}

void save_adapter(const std::filesystem::path& folder, const exporting::Adapter& adapter,
                  const std::filesystem::path& tokenizer_folder) {
  store::AtomicDirectory directory(folder, attempt_name());
  exporting::write_adapter(directory.path(), adapter, tokenizer_folder);
  directory.commit();
}

void save_model(const std::filesystem::path& folder, const ModelForms& forms,
                const exporting::Adapter& adapter, const MergedWeights* merged,
                const model::ModelConfig& config, const std::filesystem::path& model_folder) {
  std::uint64_t bytes = 0;  // a GGUF's are at most twice the merged model's, with f32
  if (merged != nullptr) {
    for (const exporting::TensorEntry& entry : merged->entries()) bytes += entry.bytes();
  }
  std::uint64_t needed = forms.merged ? bytes : 0;
  for (const std::string& type : forms.gguf)
    needed += type == "f32" ? 2 * bytes : type == "q8_0" ? bytes / 2 : bytes;
  store::require_free_space(folder, needed);
  store::AtomicDirectory directory(folder, attempt_name());
  if (forms.adapter) exporting::write_adapter(directory.path(), adapter, model_folder);
  if (forms.merged) write_merged(directory.path(), *merged, model_folder, forms.shard_bytes);
  for (const std::string& type : forms.gguf) {
    write_gguf(directory.path() / fmt::format("model-{}.gguf", type), type, *merged, config, model_folder);
  }
  directory.commit();
}

}  // namespace ranktune::train
