#include "export/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace ranktune::exporting {
namespace {

[[noreturn]] void io_failed(const char* what, const std::filesystem::path& path) {
  throw Failure(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

[[noreturn]] void disk_full(int descriptor, const std::filesystem::path& path, std::uint64_t total) {
  const int error = errno;
  struct statvfs info {};
  const std::uint64_t free = ::fstatvfs(descriptor, &info) == 0 ? info.f_bavail * info.f_frsize : 0;
  throw Failure(fmt::format("cannot write {}: {}; the file needs {} bytes, {} are free", path.string(),
                            std::strerror(error), total, free));
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path, std::uint64_t total)
    : path_(std::move(path)),
      total_(total),
      descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) io_failed("open", path_);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == ENOSPC || errno == EDQUOT)) disk_full(descriptor_, path_, total_);
    if (written < 0) io_failed("write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::close() {
  if (::fsync(descriptor_) != 0) io_failed("fsync", path_);
  if (::close(std::exchange(descriptor_, -1)) != 0) io_failed("close", path_);
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path, text.size());
  file.write(text);
  file.close();
}

}  // namespace ranktune::exporting
