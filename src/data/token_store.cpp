#include "data/token_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"
#include "data/sample_order.hpp"

namespace ranktune::data {
namespace {

// Layout: header, offsets as int64 [samples + 1], ids as int32 [tokens], where `masked` is 1 `trained` as
// bytes [tokens], content_hash of all that as hex
// digits. Integers are in the order of the machine, which the header's byte_order tells.
struct Header {
  std::array<char, 8> magic{'R', 'T', 'T', 'O', 'K', 'E', 'N', 'S'};
  std::uint32_t version = 2;
  std::uint32_t byte_order = 0x01020304;
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  std::int64_t truncated = 0;
  std::int64_t skipped = 0;
  std::uint64_t masked = 0;
};
static_assert(sizeof(Header) == 56 && std::has_unique_object_representations_v<Header>);

constexpr std::size_t kHashDigits = 32;

[[noreturn]] void damaged(std::string_view what) {
  throw Failure(fmt::format("stored tokens are damaged: {}", what));
}

Header checked_header(std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(Header) + kHashDigits) damaged("cut short");
  std::memcpy(&header, bytes.data(), sizeof(Header));
  const Header expected;
  if (header.magic != expected.magic) damaged("no such format");
  if (header.version != expected.version || header.byte_order != expected.byte_order) {
    damaged("written by another version or on another kind of machine");
  }
  // Bounds first, so that the sum cannot overflow.
  const std::uint64_t payload = bytes.size() - sizeof(Header) - kHashDigits;
  const bool bounded = header.masked <= 1 && header.samples < payload / sizeof(std::int64_t) &&
                       header.tokens <= payload / sizeof(std::int32_t);
  if (!bounded ||
      (header.samples + 1) * sizeof(std::int64_t) + header.tokens * (sizeof(std::int32_t) + header.masked) !=
          payload) {
    damaged("the sizes in it do not add up to its length");
  }
  const auto content = bytes.substr(0, bytes.size() - kHashDigits);
  if (content_hash(content) != bytes.substr(content.size())) damaged("the checksum does not match");
  return header;
}

void check_content(const TokenStore& store) {
  if (store.offsets.front() != 0 || store.offsets.back() != store.tokens()) damaged("offsets out of range");
  for (std::size_t i = 1; i < store.offsets.size(); ++i) {
    if (store.offsets[i] < store.offsets[i - 1]) damaged("offsets that fall");
  }
  for (const auto id : store.ids) {
    if (id < 0) damaged("a negative id");
  }
  for (const auto flag : store.trained) {
    if (flag > 1) damaged("a mark that is neither 0 nor 1");
  }
  if (store.truncated < 0 || store.skipped < 0) damaged("a negative count");
}

std::filesystem::path cache_file(const std::filesystem::path& directory, const std::string& key) {
  return directory / "tokens" / (key + ".tokens");
}

std::string error_text(int code) {
  return std::generic_category().message(code);
}

// Writes and syncs a whole file; 0, or the errno of the call that failed.
int write_file(const std::filesystem::path& path, std::string_view bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno;
  int failed = 0;
  while (!bytes.empty() && failed == 0) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      failed = errno;
    }
  }
  if (failed == 0 && ::fsync(descriptor) != 0) failed = errno;
  if (::close(descriptor) != 0 && failed == 0) failed = errno;
  return failed;
}

}  // namespace

std::span<const std::int32_t> TokenStore::sample(std::int64_t index) const {
  RT_CHECK(index >= 0 && index < samples(),
           fmt::format("sample {} of a store that holds {} samples", index, samples()));
  const auto begin = static_cast<std::size_t>(offsets[static_cast<std::size_t>(index)]);
  const auto end = static_cast<std::size_t>(offsets[static_cast<std::size_t>(index) + 1]);
  return std::span(ids).subspan(begin, end - begin);
}

std::span<const std::uint8_t> TokenStore::trained_of(std::int64_t index) const {
  if (trained.empty()) return {};
  const auto length = sample(index).size();
  return std::span(trained).subspan(static_cast<std::size_t>(offsets[static_cast<std::size_t>(index)]),
                                    length);
}

void TokenStore::add(std::span<const std::int32_t> sample_ids, std::span<const std::uint8_t> targets) {
  RT_CHECK(targets.empty() || targets.size() == sample_ids.size(), "a mark for each id, or none at all");
  if (!targets.empty() && trained.empty()) trained.assign(ids.size(), 1);
  ids.insert(ids.end(), sample_ids.begin(), sample_ids.end());
  trained.insert(trained.end(), targets.begin(), targets.end());
  if (!trained.empty()) trained.resize(ids.size(), 1);
  offsets.push_back(tokens());
}

void TokenStore::append(const TokenStore& other) {
  RT_CHECK(&other != this, "a token store cannot be appended to itself");
  const std::int64_t shift = tokens();
  offsets.reserve(offsets.size() + other.offsets.size() - 1);
  for (std::size_t i = 1; i < other.offsets.size(); ++i) offsets.push_back(other.offsets[i] + shift);
  if (!other.trained.empty() && trained.empty()) trained.assign(ids.size(), 1);
  ids.insert(ids.end(), other.ids.begin(), other.ids.end());
  trained.insert(trained.end(), other.trained.begin(), other.trained.end());
  if (!trained.empty()) trained.resize(ids.size(), 1);
  truncated += other.truncated;
  skipped += other.skipped;
}

TokenStore hold_out(TokenStore& store, std::int64_t count, std::uint64_t seed) {
  RT_CHECK(count > 0 && count < store.samples(), "some samples are held out and some stay");
  // The permutation of an epoch that no training comes to.
  const auto order =
      SampleOrder(store.samples(), 1, seed, true).epoch(std::numeric_limits<std::uint32_t>::max());
  std::vector<bool> taken(static_cast<std::size_t>(store.samples()));
  for (std::int64_t i = 0; i < count; ++i) {
    taken[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = true;
  }
  TokenStore rest;
  TokenStore held;
  rest.truncated = store.truncated;
  rest.skipped = store.skipped;
  for (std::int64_t index = 0; index < store.samples(); ++index) {
    TokenStore& target = taken[static_cast<std::size_t>(index)] ? held : rest;
    target.add(store.sample(index), store.trained_of(index));
  }
  store = std::move(rest);
  return held;
}

std::string TokenStore::serialize() const {
  Header header;
  header.samples = static_cast<std::uint64_t>(samples());
  header.tokens = static_cast<std::uint64_t>(tokens());
  header.truncated = truncated;
  header.skipped = skipped;
  header.masked = trained.empty() ? 0 : 1;
  const std::size_t offset_bytes = offsets.size() * sizeof(std::int64_t);
  const std::size_t id_bytes = ids.size() * sizeof(std::int32_t);
  std::string bytes;
  bytes.reserve(sizeof(Header) + offset_bytes + id_bytes + trained.size() + kHashDigits);
  bytes.append(reinterpret_cast<const char*>(&header), sizeof(Header));
  bytes.append(reinterpret_cast<const char*>(offsets.data()), offset_bytes);
  if (!ids.empty()) bytes.append(reinterpret_cast<const char*>(ids.data()), id_bytes);
  if (!trained.empty()) bytes.append(reinterpret_cast<const char*>(trained.data()), trained.size());
  return bytes.append(content_hash(bytes));
}

TokenStore TokenStore::parse(std::string_view bytes) {
  const Header header = checked_header(bytes);
  TokenStore store;
  store.offsets.resize(header.samples + 1);
  store.ids.resize(header.tokens);
  store.truncated = header.truncated;
  store.skipped = header.skipped;
  const char* const payload = bytes.data() + sizeof(Header);
  const std::size_t offset_bytes = store.offsets.size() * sizeof(std::int64_t);
  std::memcpy(store.offsets.data(), payload, offset_bytes);
  if (!store.ids.empty()) {
    std::memcpy(store.ids.data(), payload + offset_bytes, store.ids.size() * sizeof(std::int32_t));
  }
  if (header.masked == 1 && header.tokens > 0) {
    store.trained.resize(header.tokens);
    std::memcpy(store.trained.data(), payload + offset_bytes + store.ids.size() * sizeof(std::int32_t),
                header.tokens);
  }
  check_content(store);
  return store;
}

std::optional<TokenStore> load_cached_tokens(const std::filesystem::path& directory, const std::string& key) {
  try {
    return TokenStore::parse(read_file(cache_file(directory, key)));
  } catch (const UserError&) {  // absent or unreadable
    return std::nullopt;
  } catch (const Failure&) {  // damaged
    return std::nullopt;
  }
}

std::optional<std::string> save_cached_tokens(const std::filesystem::path& directory, const std::string& key,
                                              const TokenStore& store) {
  const auto target = cache_file(directory, key);
  const auto failed = [&](const std::string& why) {
    return fmt::format("the tokens could not be cached in {}: {}", target.string(), why);
  };
  std::error_code error;
  std::filesystem::create_directories(target.parent_path(), error);
  if (error) return failed(error.message());

  // Host and process, since the cache may lie on a file system that nodes share.
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) return failed(error_text(errno));
  auto temporary = target;
  temporary += fmt::format(".tmp-{}-{}", host.data(), ::getpid());
  if (const int code = write_file(temporary, store.serialize()); code != 0) {
    std::filesystem::remove(temporary, error);
    return failed(error_text(code));
  }
  std::filesystem::rename(temporary, target, error);
  if (error) {
    const std::string why = error.message();
    std::filesystem::remove(temporary, error);
    return failed(why);
  }
  return std::nullopt;
}

}  // namespace ranktune::data
