#include "train/output.hpp"

#include <unistd.h>

#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.hpp"
#include "base/file.hpp"
#include "export/safetensors_writer.hpp"
#include "store/atomic_directory.hpp"

namespace ranktune::train {
namespace {

// The pair of trained matrices that belongs to a base weight of this name, or null.
struct LoraPair {
  const model::FlatTensor* a = nullptr;
  const model::FlatTensor* b = nullptr;
};

std::map<std::string, LoraPair> pairs_by_base(const model::FlatLayout& layout) {
  static const std::string prefix = "base_model.model.";
  std::map<std::string, LoraPair> pairs;
  for (const model::FlatTensor& tensor : layout.tensors) {
    const auto end = tensor.name.rfind(".lora_");
    LoraPair& pair = pairs[tensor.name.substr(prefix.size(), end - prefix.size()) + ".weight"];
    (tensor.is_a ? pair.a : pair.b) = &tensor;
  }
  return pairs;
}

at::Tensor matrix_of(const at::Tensor& master, const model::FlatTensor& tensor) {
  return master.narrow(0, tensor.offset, tensor.rows * tensor.columns).view({tensor.rows, tensor.columns});
}

// config.json with the type that the merged weights have.
void write_config(const std::filesystem::path& from, const std::filesystem::path& to) {
  auto config = nlohmann::ordered_json::parse(read_file(from));
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = "bfloat16";
  std::ofstream(to) << config.dump(2) << '\n';
}

}  // namespace

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

void save_merged(const std::filesystem::path& folder, model::Decoder& decoder, const at::Tensor& master,
                 const std::filesystem::path& model_folder) {
  std::vector<exporting::TensorEntry> entries;
  std::map<std::string, at::Tensor> bases;
  std::uint64_t bytes = 0;
  for (const model::WeightSlot& slot : decoder.weight_slots()) {
    RT_CHECK(slot.nf4 == nullptr, "4-bit weights are not merged");
    entries.push_back({slot.name, "BF16", slot.destination.sizes().vec()});
    bases[slot.name] = slot.destination;
    bytes += entries.back().bytes();
  }
  store::require_free_space(folder, bytes);
  const auto pairs = pairs_by_base(decoder.layout());
  const auto fill = [&](const exporting::TensorEntry& entry, const exporting::Sink& sink) {
    at::Tensor weight = bases.at(entry.name);
    if (const auto found = pairs.find(entry.name); found != pairs.end()) {
      at::Tensor sum = weight.to(at::kFloat).contiguous();
      sum.add_(at::mm(matrix_of(master, *found->second.b), matrix_of(master, *found->second.a)),
               decoder.lora().scaling());
      weight = sum;
    }
    const at::Tensor host = weight.to(at::kBFloat16).contiguous().to(at::kCPU);
    sink({static_cast<const std::byte*>(host.data_ptr()), host.nbytes()});
  };

  store::AtomicDirectory directory(folder, attempt_name());
  exporting::write_sharded_safetensors(directory.path(), entries, fill);
  write_config(model_folder / "config.json", directory.path() / "config.json");
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                           "merges.txt", "chat_template.jinja", "LICENSE", "LICENSE.txt"}) {
    if (std::filesystem::exists(model_folder / name)) {
      std::filesystem::copy_file(model_folder / name, directory.path() / name);
    }
  }
  directory.commit();
}

}  // namespace ranktune::train
