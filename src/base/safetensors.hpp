// Reads safetensors files (https://github.com/huggingface/safetensors#format): 8 bytes header length,
// little-endian, a JSON header, then the data section. The one parser of the project; everything is checked
// before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file.hpp"

namespace ranktune {

struct SafetensorsEntry {
  std::string dtype;                // as in the file: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;  // empty for a scalar
  std::uint64_t begin = 0;          // bytes within the data section
  std::uint64_t end = 0;
};

class SafetensorsFile {
 public:
  // Maps the file and checks its header: length against the file's size and a bound of 100 MB, strict JSON
  // without duplicate names, known dtypes, shape x dtype size = end - begin, all within the file, no
  // overlaps. Memory used stays a small multiple of the header. Throws UserError naming file and tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  // The header's "__metadata__", empty when absent.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }
  // The bytes of one tensor, little-endian, row-major; not aligned to anything, so copy out with memcpy.
  // Throws UserError when there is no such tensor.
  std::span<const std::byte> data(const std::string& name) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::span<const std::byte> section_;
};

// Bytes of one element: "F32" -> 4. Throws UserError for a dtype that is not known.
std::uint64_t dtype_bytes(const std::string& dtype);

}  // namespace ranktune
