#include "data/hub.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "temporary_folder.hpp"

namespace ranktune::data {
namespace {

namespace fs = std::filesystem;
using test::user_error;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
const std::string kOther = "fedcba9876543210fedcba9876543210fedcba98";

// Every variable that the lookup reads, cleared at the start and put back at the end; the current folder is
// an empty one, so that a name is never a folder by accident.
class Hub : public testing::Test {
 protected:
  Hub() : before_(fs::current_path()) {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      saved_.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
      ::unsetenv(name);
    }
    fs::create_directories(root() / "here");
    fs::current_path(root() / "here");
  }
  ~Hub() override {
    fs::current_path(before_);
    for (const auto& [name, value] : saved_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }

  const fs::path& root() const { return folder_.path(); }
  void set(const char* name, const fs::path& value) { ::setenv(name, value.c_str(), 1); }

  // A snapshot in the cache as huggingface_hub lays it out: files are links into blobs/.
  fs::path add_snapshot(const fs::path& cache, const std::string& folder, const std::string& commit,
                        const std::string& content = "{}") {
    folder_.write(cache / folder / "blobs" / commit, content);
    const auto snapshot = root() / cache / folder / "snapshots" / commit;
    fs::create_directories(snapshot);
    fs::create_symlink(fs::path("../../blobs") / commit, snapshot / "config.json");
    return snapshot;
  }
  void add_ref(const fs::path& cache, const std::string& folder, const std::string& content) {
    folder_.write(cache / folder / "refs" / "main", content);
  }

 private:
  test::TemporaryFolder folder_;
  fs::path before_;
  std::vector<std::pair<std::string, std::optional<std::string>>> saved_;
};

TEST_F(Hub, AFolderOrFileIsReturnedAsItIs) {
  fs::create_directories("owner/name");
  EXPECT_EQ(resolve_hub_name("owner/name", HubKind::model), "owner/name");
  EXPECT_EQ(resolve_hub_name("./owner", HubKind::dataset), "./owner");
  EXPECT_EQ(resolve_hub_name(root().string(), HubKind::model), root());
}

TEST_F(Hub, FollowsRefsMainToItsSnapshot) {
  set("HF_HUB_CACHE", root() / "cache");
  const auto model = add_snapshot("cache", "models--Qwen--Qwen3-8B", kCommit, "model");
  add_snapshot("cache", "models--Qwen--Qwen3-8B", kOther);
  add_ref("cache", "models--Qwen--Qwen3-8B", kCommit + "\n");
  const auto data = add_snapshot("cache", "datasets--yahma--alpaca-cleaned", kCommit);
  add_ref("cache", "datasets--yahma--alpaca-cleaned", kCommit);
  const auto plain = add_snapshot("cache", "models--gpt2", kCommit);
  add_ref("cache", "models--gpt2", kCommit);

  EXPECT_EQ(resolve_hub_name("Qwen/Qwen3-8B", HubKind::model), model);
  EXPECT_EQ(read_file(resolve_hub_name("Qwen/Qwen3-8B", HubKind::model) / "config.json"), "model");
  EXPECT_EQ(resolve_hub_name("yahma/alpaca-cleaned", HubKind::dataset), data);
  EXPECT_EQ(resolve_hub_name("gpt2", HubKind::model), plain);
}

TEST_F(Hub, LooksWhereTheVariablesSay) {
  // From the weakest to the strongest: each one set later hides those before.
  const std::vector<std::pair<const char*, std::pair<fs::path, fs::path>>> places = {
      {"HOME", {"home", "home/.cache/huggingface/hub"}},
      {"XDG_CACHE_HOME", {"xdg", "xdg/huggingface/hub"}},
      {"HF_HOME", {"hf", "hf/hub"}},
      {"HUGGINGFACE_HUB_CACHE", {"old", "old"}},
      {"HF_HUB_CACHE", {"new", "new"}},
  };
  for (const auto& [name, place] : places) {
    set(name, root() / place.first);
    EXPECT_CONTAINS(user_error([] { resolve_hub_name("a/b", HubKind::model); }),
                    (root() / place.second / "models--a--b").string());
    const auto snapshot = add_snapshot(place.second, "models--a--b", kCommit);
    EXPECT_EQ(resolve_hub_name("a/b", HubKind::model), snapshot) << name;
  }
  ::setenv("HF_HUB_CACHE", "", 1);  // empty is unset
  EXPECT_EQ(resolve_hub_name("a/b", HubKind::model), root() / "old/models--a--b/snapshots" / kCommit);
  ::setenv("HF_HUB_CACHE", "~/x", 1);
  EXPECT_EQ(resolve_hub_name("a/b", HubKind::model), add_snapshot("home/x", "models--a--b", kCommit));
}

TEST_F(Hub, WithoutRefsMainTheOnlySnapshotIsUsed) {
  set("HF_HUB_CACHE", root() / "cache");
  const auto only = add_snapshot("cache", "models--a--b", kCommit);
  EXPECT_EQ(resolve_hub_name("a/b", HubKind::model), only);
  add_snapshot("cache", "models--a--b", kOther);
  const auto error = user_error([] { resolve_hub_name("a/b", HubKind::model); });
  EXPECT_CONTAINS(error, "2 snapshots");
  EXPECT_CONTAINS(error, (root() / "cache/models--a--b/snapshots").string());
  EXPECT_CONTAINS(error, "hf download a/b");
}

TEST_F(Hub, AnIncompleteDownloadSaysSo) {
  set("HF_HUB_CACHE", root() / "cache");
  fs::create_directories(root() / "cache/models--a--b/blobs");
  EXPECT_CONTAINS(user_error([] { resolve_hub_name("a/b", HubKind::model); }), "holds no snapshot");
  add_snapshot("cache", "models--a--b", kOther);
  add_ref("cache", "models--a--b", kCommit);  // names a snapshot that is not there
  auto error = user_error([] { resolve_hub_name("a/b", HubKind::model); });
  EXPECT_CONTAINS(error, "not complete");
  EXPECT_CONTAINS(error, kCommit);
  fs::create_directories(root() / "cache/models--a--b/snapshots" / kCommit);
  EXPECT_CONTAINS(user_error([] { resolve_hub_name("a/b", HubKind::model); }), "missing or empty");
}

TEST_F(Hub, ARefThatLeadsElsewhereIsRefused) {
  set("HF_HUB_CACHE", root() / "cache");
  add_snapshot("cache", "models--a--b", kCommit);
  for (const char* ref : {"../../../..", "", "main", "/etc"}) {
    add_ref("cache", "models--a--b", ref);
    EXPECT_CONTAINS(user_error([] { resolve_hub_name("a/b", HubKind::model); }), "does not hold a commit");
  }
}

TEST_F(Hub, ANameThatIsNowhereSaysWhatToRun) {
  set("HF_HUB_CACHE", root() / "cache");
  auto error = user_error([] { resolve_hub_name("Qwen/Qwen3-8B", HubKind::model); });
  EXPECT_CONTAINS(error, "'Qwen/Qwen3-8B' is neither a folder or file nor a model");
  EXPECT_CONTAINS(error, (root() / "cache/models--Qwen--Qwen3-8B").string());
  EXPECT_TRUE(error.ends_with("hf download Qwen/Qwen3-8B")) << error;
  error = user_error([] { resolve_hub_name("yahma/alpaca-cleaned", HubKind::dataset); });
  EXPECT_CONTAINS(error, (root() / "cache/datasets--yahma--alpaca-cleaned").string());
  EXPECT_TRUE(error.ends_with("hf download yahma/alpaca-cleaned --repo-type dataset")) << error;
}

TEST_F(Hub, WhatLooksLikeAPathIsNotLookedUp) {
  set("HF_HUB_CACHE", root() / "cache");
  for (const std::string name : {"",          "./x",        "../x",
                                 "/x",        "a/b/c",      "a/",
                                 "a//b",      ".x",         "x.",
                                 "-x",        "a--b",       "a..b",
                                 "a b",       "a\nb",       "models/\xC3\xA9",
                                 "rows.json", "rows.jsonl", "a/rows.parquet",
                                 "x.git",     "~/x"}) {
    EXPECT_CONTAINS(user_error([&] { resolve_hub_name(name, HubKind::model); }),
                    "no such folder or file: '" + name + "'");
  }
  EXPECT_CONTAINS(user_error([] { resolve_hub_name(std::string("a\0b", 3), HubKind::model); }),
                  "no such folder or file");
  EXPECT_CONTAINS(user_error([] { resolve_hub_name(std::string(97, 'x'), HubKind::model); }),
                  "no such folder or file");
  EXPECT_CONTAINS(user_error([] { resolve_hub_name(std::string(5000, 'x'), HubKind::model); }),
                  "name too long");
  EXPECT_CONTAINS(user_error([] { resolve_hub_name("~/x", HubKind::model); }), "$HOME");
}

TEST_F(Hub, WithoutAnyVariableItSaysWhichToSet) {
  EXPECT_CONTAINS(user_error([] { resolve_hub_name("a/b", HubKind::model); }), "HF_HUB_CACHE");
}

}  // namespace
}  // namespace ranktune::data
