#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/error.hpp"
#include "base/file.hpp"
#include "store/atomic_directory.hpp"
#include "temporary_folder.hpp"

namespace ranktune::store {
namespace {

namespace fs = std::filesystem;
using ranktune::testing::TemporaryFolder;

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path) << content;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(AtomicDirectory, AppearsUnderItsNameOnCommitOnly) {
  const TemporaryFolder folder;
  AtomicDirectory directory(folder / "adapter", "7");
  fs::create_directory(directory.path() / "inner");
  put(directory.path() / "inner/a", "1");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"adapter.tmp-7"});
  directory.commit();
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"adapter"});
  EXPECT_EQ(read_file(folder / "adapter/inner/a"), "1");
}

TEST(AtomicDirectory, ReplacesAnExistingOne) {
  const TemporaryFolder folder;
  for (const std::string content : {"first", "second"}) {
    AtomicDirectory directory(folder.path() / "adapter/", content);
    put(directory.path() / "file", content);
    directory.commit();
    EXPECT_EQ(read_file(folder / "adapter/file"), content);
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"adapter"});
}

TEST(AtomicDirectory, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  {
    AtomicDirectory directory(folder / "adapter", "7");
    put(directory.path() / "file", "x");
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicDirectory, SaysWhereItCannotWrite) {
  const TemporaryFolder folder;
  put(folder / "file", "");
  try {
    const AtomicDirectory directory(folder / "file/adapter", "7");
    FAIL() << "made a directory inside a file";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find((folder / "file/adapter.tmp-7").string()), std::string::npos);
  }
}

TEST(WriteFileAtomically, ReplacesAndLeavesNoTemporary) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  write_file_atomically(folder / "a", std::string(100'000, 'n'));
  EXPECT_EQ(read_file(folder / "a"), std::string(100'000, 'n'));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
  EXPECT_THROW(write_file_atomically(folder / "missing/a", "x"), Failure);
}

TEST(RemoveStaleTemporaries, CleansAndFinishesReplacements) {
  const TemporaryFolder folder;
  for (const std::string name : {"a.tmp-1", "b", "b.old-1", "c.old-1", "d"})
    fs::create_directory(folder / name);
  put(folder / "c.old-1/file", "kept");
  put(folder / "e.tmp-9", "half");
  remove_stale_temporaries(folder.path());
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"b", "c", "d"}));
  EXPECT_EQ(read_file(folder / "c/file"), "kept");
  remove_stale_temporaries(folder / "missing");
}

TEST(RequireFreeSpace, SaysBothFigures) {
  const TemporaryFolder folder;
  require_free_space(folder / "not/made/yet", 1);
  try {
    require_free_space(folder.path(), std::uint64_t{1} << 62U);
    FAIL() << "4 EiB should not be free";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("needs 4611686018427387904 bytes"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("are free"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ranktune::store
