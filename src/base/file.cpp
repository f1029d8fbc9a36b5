#include "base/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace ranktune {
namespace {

// Opens a regular file and returns descriptor and size; one sentence for each way that can fail.
std::pair<int, std::size_t> open_regular(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw UserError("cannot read " + path.string() + ": " + std::strerror(errno));
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    throw UserError("cannot read " + path.string() + ": not a regular file");
  }
  return {descriptor, static_cast<std::size_t>(info.st_size)};
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const auto [descriptor, size] = open_regular(path);
  std::string content(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(descriptor, content.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  ::close(descriptor);
  if (done != size)
    throw UserError("cannot read " + path.string() + ": the file ended early or the disk failed");
  return content;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const auto [descriptor, size] = open_regular(path);
  if (size > 0) {
    void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (memory == MAP_FAILED) {
      ::close(descriptor);
      throw UserError("cannot map " + path.string() + ": " + std::strerror(errno));
    }
    data_ = static_cast<const std::byte*>(memory);
    size_ = size;
  }
  ::close(descriptor);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string content_hash(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::filesystem::path cache_directory(const std::filesystem::path& fallback) {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read before any thread writes
    return value == nullptr ? "" : value;
  };
  if (auto own = variable("RANKTUNE_CACHE"); !own.empty()) return own;
  if (const auto xdg = variable("XDG_CACHE_HOME"); !xdg.empty())
    return std::filesystem::path(xdg) / "ranktune";
  if (const auto home = variable("HOME"); !home.empty())
    return std::filesystem::path(home) / ".cache/ranktune";
  return fallback;
}

}  // namespace ranktune
