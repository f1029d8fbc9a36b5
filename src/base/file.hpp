// Whole files, read-only maps, and content hashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace ranktune {

// The whole content of a regular file. Throws UserError naming the path when it cannot be read.
std::string read_file(const std::filesystem::path& path);

// A read-only memory map of a regular file; empty files map to an empty span. Throws UserError.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// XXH3-128 of the bytes, as 32 lower-case hex digits.
std::string content_hash(std::string_view bytes);

// RANKTUNE_CACHE, else XDG_CACHE_HOME/ranktune, else HOME/.cache/ranktune, else `fallback`; not created.
std::filesystem::path cache_directory(const std::filesystem::path& fallback);

}  // namespace ranktune
