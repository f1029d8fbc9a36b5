#include "data/token_store.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "base/file.hpp"
#include "temporary_folder.hpp"

namespace ranktune::data {
namespace {

using Ints = std::vector<std::int32_t>;
using Offsets = std::vector<std::int64_t>;

TokenStore small_store() {
  TokenStore store;
  store.ids = {5, 6, 7, 8, 9};
  store.offsets = {0, 2, 5};
  store.truncated = 3;
  store.skipped = 4;
  return store;
}

void expect_same(const TokenStore& left, const TokenStore& right) {
  EXPECT_EQ(left.ids, right.ids);
  EXPECT_EQ(left.offsets, right.offsets);
  EXPECT_EQ(left.truncated, right.truncated);
  EXPECT_EQ(left.skipped, right.skipped);
}

Ints ids_of(const TokenStore& store, std::int64_t index) {
  const auto ids = store.sample(index);
  return {ids.begin(), ids.end()};
}

TEST(TokenStore, HandsOutSamples) {
  const auto store = small_store();
  EXPECT_EQ(store.samples(), 2);
  EXPECT_EQ(store.tokens(), 5);
  EXPECT_EQ(ids_of(store, 0), (Ints{5, 6}));
  EXPECT_EQ(ids_of(store, 1), (Ints{7, 8, 9}));
  EXPECT_THROW(store.sample(2), Failure);
  EXPECT_THROW(store.sample(-1), Failure);
}

TEST(TokenStore, AppendsBehindItsOwn) {
  auto store = small_store();
  store.append(TokenStore{});
  expect_same(store, small_store());
  store.append(small_store());
  EXPECT_EQ(store.offsets, (Offsets{0, 2, 5, 7, 10}));
  EXPECT_EQ(ids_of(store, 3), (Ints{7, 8, 9}));
  EXPECT_EQ(store.truncated, 6);
  EXPECT_EQ(store.skipped, 8);
  EXPECT_THROW(store.append(store), Failure);
}

TEST(TokenStore, SurvivesSerializing) {
  expect_same(TokenStore::parse(small_store().serialize()), small_store());
  expect_same(TokenStore::parse(TokenStore{}.serialize()), TokenStore{});
}

TEST(TokenStore, NoticesEveryFlippedBit) {
  const std::string good = small_store().serialize();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const unsigned bit : {0U, 7U}) {
      std::string bad = good;
      bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ (1U << bit));
      EXPECT_THROW(TokenStore::parse(bad), Failure) << "byte " << at;
    }
  }
}

TEST(TokenStore, NoticesEveryOtherLength) {
  const std::string good = small_store().serialize();
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW(TokenStore::parse(std::string_view(good).substr(0, length)), Failure) << length;
  }
  EXPECT_THROW(TokenStore::parse(good + "x"), Failure);
}

// Sizes whose byte counts overflow must not be believed even under a right checksum.
TEST(TokenStore, NoticesSizesThatOverflow) {
  const std::string good = small_store().serialize();
  constexpr std::size_t kSamplesAt = 16;
  constexpr std::size_t kTokensAt = 24;
  for (const std::size_t at : {kSamplesAt, kTokensAt}) {
    for (const std::uint64_t size :
         {std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1} << 61U, std::uint64_t{1} << 62U,
          (std::uint64_t{1} << 61U) + 2, (std::uint64_t{1} << 62U) + 5, std::uint64_t{6}}) {
      std::string bad = good.substr(0, good.size() - 32);
      std::memcpy(bad.data() + at, &size, sizeof(size));
      EXPECT_THROW(TokenStore::parse(bad + content_hash(bad)), Failure) << at << ' ' << size;
    }
  }
}

TEST(TokenStore, NoticesOffsetsAndIdsOutOfRange) {
  for (const Offsets& offsets : {Offsets{0, 2, 6}, Offsets{0, 6, 5}, Offsets{1, 2, 5}, Offsets{0, -1, 5}}) {
    auto store = small_store();
    store.offsets = offsets;
    EXPECT_THROW(TokenStore::parse(store.serialize()), Failure);
  }
  auto store = small_store();
  store.ids[1] = -1;
  EXPECT_THROW(TokenStore::parse(store.serialize()), Failure);
}

// Marks come in with the first sample that has them: what was there before is trained on.
TEST(TokenStore, KeepsMarks) {
  const Ints ids{1, 2, 3};
  const std::vector<std::uint8_t> marks{0, 1, 0};
  TokenStore marked;
  marked.add(ids, marks);
  auto store = small_store();
  EXPECT_TRUE(store.trained_of(1).empty());
  store.append(marked);
  store.append(small_store());
  store.add(ids, {});
  EXPECT_EQ(store.trained, (std::vector<std::uint8_t>{1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  const auto again = TokenStore::parse(store.serialize());
  expect_same(again, store);
  EXPECT_EQ(again.trained, store.trained);
  const auto of_two = again.trained_of(2);
  EXPECT_EQ(std::vector<std::uint8_t>(of_two.begin(), of_two.end()), marks);
  store.trained[3] = 2;
  EXPECT_THROW(TokenStore::parse(store.serialize()), Failure);
}

TEST(TokenCache, KeepsTokensUnderTheirKey) {
  const test::TemporaryFolder folder;
  const auto cache = folder.path() / "not" / "yet";
  EXPECT_FALSE(load_cached_tokens(cache, "key"));
  EXPECT_EQ(save_cached_tokens(cache, "key", small_store()), std::nullopt);
  const auto loaded = load_cached_tokens(cache, "key");
  ASSERT_TRUE(loaded);
  expect_same(*loaded, small_store());
  EXPECT_FALSE(load_cached_tokens(cache, "other"));
  // Written again, replaced as a whole, and nothing else is left beside it.
  EXPECT_EQ(save_cached_tokens(cache, "key", TokenStore{}), std::nullopt);
  expect_same(load_cached_tokens(cache, "key").value(), TokenStore{});
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(cache / "tokens")) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_EQ(names, std::vector<std::string>{"key.tokens"});
}

TEST(TokenCache, ADamagedFileIsNoHit) {
  const test::TemporaryFolder folder;
  const std::string good = small_store().serialize();
  folder.write("tokens/key.tokens", good.substr(0, good.size() - 1));
  EXPECT_FALSE(load_cached_tokens(folder.path(), "key"));
  folder.write("tokens/key.tokens", "");
  EXPECT_FALSE(load_cached_tokens(folder.path(), "key"));
  folder.write("tokens/key.tokens", good);
  EXPECT_TRUE(load_cached_tokens(folder.path(), "key"));
}

TEST(TokenCache, SaysWhyItCannotWrite) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("file", "");  // where a folder would have to be
  const auto error = save_cached_tokens(file, "key", small_store());
  ASSERT_TRUE(error);
  EXPECT_CONTAINS(*error, (file / "tokens" / "key.tokens").string());
  EXPECT_CONTAINS(*error, "Not a directory");

  // A folder under the final name: the rename fails, and the temporary file goes.
  folder.write("tokens/key.tokens/inside", "");
  EXPECT_TRUE(save_cached_tokens(folder.path(), "key", small_store()));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path() / "tokens")) {
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST(TokenCache, AFullDiskIsAnErrorText) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  // The temporary name is known: a link there leads the write to a device that is always full.
  const test::TemporaryFolder folder;
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const auto temporary =
      folder.path() / "tokens" / ("key.tokens.tmp-" + std::string(host) + "-" + std::to_string(::getpid()));
  std::filesystem::create_directories(temporary.parent_path());
  std::filesystem::create_symlink("/dev/full", temporary);
  const auto error = save_cached_tokens(folder.path(), "key", small_store());
  ASSERT_TRUE(error);
  EXPECT_CONTAINS(*error, "No space left on device");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "tokens" / "key.tokens"));
  EXPECT_FALSE(std::filesystem::is_symlink(temporary));
}

TEST(TokenStore, HoldsSamplesOutByTheSeedAlone) {
  TokenStore all;
  for (std::int32_t i = 0; i < 20; ++i) {
    all.ids.insert(all.ids.end(), static_cast<std::size_t>(i % 3 + 1), i);
    all.offsets.push_back(all.tokens());
  }
  const auto first_ids = [](const TokenStore& store) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < store.samples(); ++i) ids.push_back(store.sample(i).front());
    return ids;
  };
  TokenStore rest = all;
  const TokenStore held = hold_out(rest, 6, 1);
  EXPECT_EQ(held.samples(), 6);
  EXPECT_EQ(rest.samples(), 14);
  auto both = first_ids(held);
  EXPECT_TRUE(std::is_sorted(both.begin(), both.end()));
  for (const std::int32_t id : first_ids(rest)) both.push_back(id);
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, first_ids(all));
  TokenStore again = all;
  EXPECT_EQ(first_ids(hold_out(again, 6, 1)), first_ids(held));
  EXPECT_EQ(again.ids, rest.ids);
  TokenStore other = all;
  EXPECT_NE(first_ids(hold_out(other, 6, 2)), first_ids(held));
}

}  // namespace
}  // namespace ranktune::data
