#include "export/safetensors_writer.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/safetensors.hpp"
#include "export/output_file.hpp"

namespace ranktune::exporting {
namespace {

// The header's length and text, padded with spaces so that the data section starts on a multiple of 8 bytes.
std::string header_text(const std::vector<TensorEntry>& entries) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t begin = 0;
  for (const auto& entry : entries) {
    const std::uint64_t end = begin + entry.bytes();
    RT_CHECK(!header.contains(entry.name), "two tensors are named " + entry.name);
    header[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (unsigned shift = 0; shift < 64; shift += 8)
    length += static_cast<char>((text.size() >> shift) & 0xFFU);
  return length + text;
}

std::uint64_t total_bytes(const std::vector<TensorEntry>& entries) {
  std::uint64_t total = 0;
  for (const auto& entry : entries) total += entry.bytes();
  return total;
}

void write_tensor(OutputFile& file, const TensorEntry& entry, const Fill& fill) {
  std::uint64_t left = entry.bytes();
  fill(entry, [&](std::span<const std::byte> bytes) {
    RT_CHECK(bytes.size() <= left, "more bytes than its shape says were handed over for " + entry.name);
    left -= bytes.size();
    file.write(bytes);
  });
  RT_CHECK(left == 0, fmt::format("{} bytes were not handed over for {}", left, entry.name));
}

// Entries in order, a new shard where the next tensor would exceed `shard_bytes`; a larger tensor has one of
// its own.
std::vector<std::vector<TensorEntry>> shards_of(const std::vector<TensorEntry>& entries,
                                                std::uint64_t shard_bytes) {
  std::vector<std::vector<TensorEntry>> shards(1);
  std::uint64_t filled = 0;
  for (const auto& entry : entries) {
    if (!shards.back().empty() && filled + entry.bytes() > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(entry);
    filled += entry.bytes();
  }
  return shards;
}

}  // namespace

std::uint64_t TensorEntry::bytes() const {
  std::uint64_t total = dtype_bytes(dtype);
  for (const auto extent : shape) {
    const bool overflow =
        extent < 0 || __builtin_mul_overflow(total, static_cast<std::uint64_t>(extent), &total);
    RT_CHECK(!overflow, "the shape of " + name + " is no shape");
  }
  return total;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                       const Fill& fill) {
  const std::string header = header_text(entries);
  OutputFile file(path, header.size() + total_bytes(entries));
  file.write(header);
  for (const auto& entry : entries) write_tensor(file, entry, fill);
  file.close();
}

void write_sharded_safetensors(const std::filesystem::path& folder, const std::vector<TensorEntry>& entries,
                               const Fill& fill, std::uint64_t shard_bytes) {
  const auto shards = shards_of(entries, shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(folder / "model.safetensors", entries, fill);
    return;
  }
  nlohmann::json weight_map = nlohmann::json::object();
  std::uint64_t parameters = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / name, shards[i], fill);
    for (const auto& entry : shards[i]) {
      RT_CHECK(!weight_map.contains(entry.name), "two tensors are named " + entry.name);
      weight_map[entry.name] = name;
      parameters += entry.bytes() / dtype_bytes(entry.dtype);
    }
  }
  const nlohmann::json index{
      {"metadata", {{"total_parameters", parameters}, {"total_size", total_bytes(entries)}}},
      {"weight_map", weight_map}};
  write_text_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace ranktune::exporting
