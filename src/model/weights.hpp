// The tensors of a model folder: one model.safetensors, or shards named by model.safetensors.index.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/safetensors.hpp"

namespace ranktune::model {

struct WeightView {
  std::string dtype;  // "F32", "F16", "BF16"
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

class WeightFiles {
 public:
  // Maps every file and checks every header. Throws UserError naming the file: missing, truncated,
  // overlapping tensors, an index whose names leave the folder.
  explicit WeightFiles(const std::filesystem::path& folder);

  bool contains(const std::string& name) const { return where_.contains(name); }
  // Throws UserError when there is none of that name.
  WeightView view(const std::string& name) const;
  std::uint64_t total_bytes() const { return total_bytes_; }
  // All names, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> where_;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace ranktune::model
