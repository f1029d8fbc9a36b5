// A file that is written once, front to back, with every error noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace ranktune::exporting {

// Truncates what is there. Throws Failure naming the path; with the disk full it says how much was needed.
class OutputFile {
 public:
  // `total` is what will be written in all, for the message.
  OutputFile(std::filesystem::path path, std::uint64_t total);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void close();  // fsync and close; without it the file is not to be trusted

 private:
  std::filesystem::path path_;
  std::uint64_t total_;
  int descriptor_ = -1;
};

// A whole small file.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace ranktune::exporting
