// Writes safetensors files, one or in shards with an index, tensor by tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace ranktune::exporting {

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "F16"
  std::vector<std::int64_t> shape;
  std::uint64_t bytes() const;
};

// Calls `fill(entry, sink)` for each tensor in order; fill hands the data over with sink(bytes), in pieces if
// it likes, and must hand over entry.bytes() in all. Streams: holds one tensor at a time. Metadata {"format":
// "pt"} is written.
using Sink = std::function<void(std::span<const std::byte>)>;
using Fill = std::function<void(const TensorEntry&, const Sink&)>;

void write_safetensors(const std::filesystem::path& file, const std::vector<TensorEntry>& entries,
                       const Fill& fill);

// model.safetensors, or model-00001-of-0000N.safetensors and model.safetensors.index.json when above
// `shard_bytes`.
void write_sharded_safetensors(const std::filesystem::path& folder, const std::vector<TensorEntry>& entries,
                               const Fill& fill, std::uint64_t shard_bytes = 5'000'000'000);

}  // namespace ranktune::exporting
