#include "store/posix_io.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.hpp"

namespace ranktune::store {
namespace {

[[noreturn]] void io_failed(const char* what, const std::filesystem::path& path, int error) {
  throw Failure(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)));
}

// Closes on every way out; close() reports.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : path_(path), number_(::open(path.c_str(), flags, 0666)) {
    if (number_ < 0) io_failed("open", path, errno);
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  void close() {
    const int number = number_;
    number_ = -1;
    if (::close(number) != 0) io_failed("close", path_, errno);
  }

 private:
  std::filesystem::path path_;
  int number_;
};

void write_all(const Descriptor& file, const std::filesystem::path& path, std::string_view content) {
  std::string_view rest = content;
  while (!rest.empty()) {
    const ssize_t written = ::write(file.number(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == ENOSPC || errno == EDQUOT)) {
      throw Failure(fmt::format("cannot write {}: {}; {} bytes are needed, {} are free", path.string(),
                                std::strerror(errno), content.size(), free_bytes(path).value_or(0)));
    }
    if (written < 0) io_failed("write", path, errno);
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void fsync_path(const std::filesystem::path& path) {
  const bool directory = std::filesystem::is_directory(path);
  const Descriptor file(path, O_RDONLY | O_CLOEXEC | (directory ? O_DIRECTORY : 0));
  if (::fsync(file.number()) != 0 && !(directory && (errno == EINVAL || errno == ENOTSUP))) {
    io_failed("fsync", path, errno);
  }
}

void write_file_durably(const std::filesystem::path& path, std::string_view content) {
  Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  write_all(file, path, content);
  if (::fsync(file.number()) != 0) io_failed("fsync", path, errno);
  file.close();
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw Failure(
        fmt::format("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno)));
  }
}

std::optional<std::uint64_t> free_bytes(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path place = std::filesystem::absolute(path, ignored);
  while (!std::filesystem::exists(place, ignored) && place.has_relative_path()) place = place.parent_path();
  struct statvfs info {};
  if (::statvfs(place.c_str(), &info) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

std::optional<std::string> space_problem(const std::filesystem::path& path, std::uint64_t bytes) {
  const auto free = free_bytes(path);
  if (!free || *free >= bytes) return std::nullopt;
  return fmt::format(
      "{} needs {} bytes ({:.1f} MiB) but only {} ({:.1f} MiB) are free there; free some or choose another "
      "place",
      path.string(), bytes, static_cast<double>(bytes) / 1048576.0, *free,
      static_cast<double>(*free) / 1048576.0);
}

}  // namespace ranktune::store
