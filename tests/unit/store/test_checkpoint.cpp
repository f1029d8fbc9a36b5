#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <tuple>

#include "base/error.hpp"
#include "base/file.hpp"
#include "small_disk.hpp"
#include "store/checkpoint.hpp"
#include "store/hdf5.hpp"
#include "temporary_folder.hpp"

namespace ranktune::store {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ranktune::testing::SmallDisk;
using ranktune::testing::TemporaryFolder;

const json kRecipe{{"model", "m"}, {"learning_rate", 2e-5}, {"modules", {"q_proj", "v_proj"}}};
const json kBits{{"world_size", 2}, {"gpu", "none"}};

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(generator);
  return values;
}

fs::path write_small(const fs::path& output_dir, std::int64_t step, std::size_t count = 1000) {
  const auto parameters = random_values(count, static_cast<unsigned>(step));
  const auto moments = random_values(count, 99);
  const std::vector<StateArray> arrays{{"parameters", parameters}, {"exp_avg", moments}};
  return write_checkpoint(output_dir, step, kRecipe, kBits, arrays, "t", [](const fs::path& folder) {
    fs::create_directory(folder / "adapter");
    std::ofstream(folder / "adapter/adapter_config.json") << "{\"r\": 16}\n";
  });
}

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// Rewrites the manifest so that changed files and a changed manifest verify: what a hostile author would do.
void forge_manifest(const fs::path& checkpoint) {
  json manifest = json::parse(read_file(checkpoint / "manifest.json"));
  manifest.erase("manifest_xxh3_128");
  for (auto& [name, facts] : manifest["files"].items()) {
    const std::string content = read_file(checkpoint / name);
    facts = {{"bytes", content.size()}, {"xxh3_128", content_hash(content)}};
  }
  const std::string hash = content_hash(manifest.dump());
  manifest["manifest_xxh3_128"] = hash;
  put(checkpoint / "manifest.json", manifest.dump(2) + "\n");
}

// What read_checkpoint says of a forged state.h5.
std::string refusal(const fs::path& checkpoint) {
  forge_manifest(checkpoint);
  EXPECT_EQ(verify_checkpoint(checkpoint), std::nullopt);
  try {
    read_checkpoint(checkpoint);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Checkpoint, RoundTripKeepsEveryBit) {
  const TemporaryFolder folder;
  auto parameters = random_values(3'000'001, 1);  // several chunks and a partial one
  parameters[0] = -0.0F;
  parameters[1] = std::numeric_limits<float>::denorm_min();
  parameters[2] = std::bit_cast<float>(0x7FC12345U);  // a NaN with a payload
  const std::vector<float> empty;
  const std::vector<StateArray> arrays{{"parameters", parameters}, {"empty", empty}};
  const fs::path path = write_checkpoint(folder.path(), 500, kRecipe, kBits, arrays, "t");
  EXPECT_EQ(path, folder / "checkpoint-000500");
  EXPECT_EQ(verify_checkpoint(path), std::nullopt);
  const Checkpoint checkpoint = read_checkpoint(path);
  EXPECT_EQ(checkpoint.step, 500);
  EXPECT_EQ(checkpoint.recipe, kRecipe);
  EXPECT_EQ(checkpoint.bits, kBits);
  EXPECT_EQ(checkpoint.arrays.size(), 2U);
  EXPECT_TRUE(checkpoint.array("empty").empty());
  ASSERT_EQ(checkpoint.array("parameters").size(), parameters.size());
  EXPECT_EQ(std::memcmp(checkpoint.array("parameters").data(), parameters.data(), parameters.size() * 4), 0);
  EXPECT_THROW(checkpoint.array("exp_avg"), Failure);

  std::vector<std::uint8_t> codes(3'000'000);  // more than one chunk
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * i % 251);
  const std::vector<std::uint8_t> none;
  const std::vector<StateArray> bytes{{"codes", std::span<const std::uint8_t>(codes)},
                                      {"none", std::span<const std::uint8_t>(none)}};
  const Checkpoint other = read_checkpoint(write_checkpoint(folder.path(), 501, kRecipe, kBits, bytes, "t"));
  EXPECT_EQ(std::get<std::vector<std::uint8_t>>(other.values("codes")), codes);
  EXPECT_TRUE(std::get<std::vector<std::uint8_t>>(other.values("none")).empty());
  EXPECT_THROW(other.array("codes"), Failure);
}

TEST(Checkpoint, ReplacesTheSameStep) {
  const TemporaryFolder folder;
  write_small(folder.path(), 5, 10);
  const fs::path path = write_small(folder.path(), 5, 20);
  EXPECT_EQ(read_checkpoint(path).array("parameters").size(), 20U);
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 1U);
}

TEST(Checkpoint, AnyFlippedBitIsFoundAndTheFileNamed) {
  const TemporaryFolder folder;
  const fs::path path = write_small(folder.path(), 5);
  std::mt19937 generator(20240611);
  for (const std::string name : {"state.h5", "manifest.json", "adapter/adapter_config.json"}) {
    const std::string whole = read_file(path / name);
    for (int repetition = 0; repetition < 60; ++repetition) {
      std::string damaged = whole;
      const std::size_t bit = generator() % (8 * whole.size());
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      put(path / name, damaged);
      const auto problem = verify_checkpoint(path);
      ASSERT_TRUE(problem.has_value()) << name << " bit " << bit;
      EXPECT_NE(problem->find(name), std::string::npos) << *problem;
      EXPECT_THROW(read_checkpoint(path), UserError);
    }
    put(path / name, whole);
  }
  EXPECT_EQ(verify_checkpoint(path), std::nullopt);
}

TEST(Checkpoint, TruncatedMissingAndOddFilesAreNamed) {
  const TemporaryFolder folder;
  const fs::path path = write_small(folder.path(), 5);
  const std::string state = read_file(path / "state.h5");
  put(path / "state.h5", state.substr(0, state.size() / 2));
  EXPECT_NE(verify_checkpoint(path)->find("state.h5 has"), std::string::npos);
  fs::remove(path / "state.h5");
  EXPECT_NE(verify_checkpoint(path)->find("state.h5 is missing"), std::string::npos);
  fs::create_symlink("/etc/passwd", path / "state.h5");
  EXPECT_NE(verify_checkpoint(path)->find("state.h5 is missing"), std::string::npos);
  put(path / "manifest.json", std::string(400'000, '['));
  EXPECT_TRUE(verify_checkpoint(path).has_value());
  put(path / "manifest.json", "{\"files\": {\"../x\": 1}}");
  EXPECT_TRUE(verify_checkpoint(path).has_value());
  EXPECT_NE(verify_checkpoint(folder / "none")->find("manifest.json is missing"), std::string::npos);
}

TEST(Checkpoint, AManifestCannotNameFilesElsewhere) {
  const TemporaryFolder folder;
  const fs::path path = write_small(folder.path(), 5);
  put(folder / "outside", "x");
  json manifest = json::parse(read_file(path / "manifest.json"));
  manifest["files"]["../outside"] = {{"bytes", 1}, {"xxh3_128", content_hash("x")}};
  put(path / "manifest.json", manifest.dump());
  forge_manifest(path);
  EXPECT_NE(verify_checkpoint(path)->find("outside the checkpoint"), std::string::npos);
}

// Changes the manifest and makes it consistent again.
void change_manifest(const fs::path& checkpoint, const json::json_pointer& place, const json& value) {
  json manifest = json::parse(read_file(checkpoint / "manifest.json"));
  manifest[place] = value;
  put(checkpoint / "manifest.json", manifest.dump());
}

TEST(Checkpoint, HostileManifestsAreRefusedBeforeMemoryIsAskedFor) {
  const std::uint64_t huge = std::uint64_t{1} << 62U;
  const std::vector<std::tuple<std::string, json, std::string>> cases{
      {"/arrays/parameters/count", huge, "claims more values than the file holds"},
      {"/arrays/parameters/count", -1, "has no size"},
      {"/arrays/parameters/count", 999, ""},
      {"/arrays/parameters/chunk", 0, "wrong number of chunks"},
      {"/arrays/parameters/chunk", 1, "wrong number of chunks"},
      {"/arrays/parameters/chunk", huge, ""},
      {"/arrays/parameters/addresses", json::array(), "wrong number of chunks"},
      {"/arrays/parameters/addresses", 7, "wrong number of chunks"},
      {"/arrays/parameters/addresses/0", huge, "lies outside of the file"},
      {"/arrays/parameters/addresses/0", ~std::uint64_t{0}, "lies outside of the file"},
      {"/arrays/parameters/addresses/0", "x", "lies outside of the file"},
      {"/arrays/parameters", 7, "has no size"},
      {"/arrays", 7, "has no arrays"},
      {"/step", -1, "has no step"},
      {"/step", ~std::uint64_t{0}, "has no step"}};
  for (const auto& [place, value, reason] : cases) {
    const TemporaryFolder folder;
    const fs::path path = write_small(folder.path(), 5);
    change_manifest(path, json::json_pointer(place), value);
    const std::string said = refusal(path);
    if (reason.empty()) {
      EXPECT_EQ(said, "") << place << " = " << value;
    } else {
      EXPECT_NE(said.find(reason), std::string::npos) << place << " = " << value << ": " << said;
    }
  }
}

TEST(Checkpoint, DamageBehindAForgedManifestNeverCrashes) {
  const TemporaryFolder folder;
  const fs::path path = write_small(folder.path(), 5, 64);
  const std::string whole = read_file(path / "state.h5");
  std::mt19937 generator(7);
  for (int repetition = 0; repetition < 100; ++repetition) {
    std::string damaged = whole.substr(0, repetition % 2 == 0 ? whole.size() : generator() % whole.size());
    for (int flips = 0; flips < 3 && !damaged.empty(); ++flips) {
      damaged[generator() % damaged.size()] = static_cast<char>(generator());
    }
    put(path / "state.h5", damaged);
    const std::string said = refusal(path);
    EXPECT_TRUE(said.empty() || said.find("its array") != std::string::npos) << said;
  }
}

// The state is HDF5 for everybody: the library reads the same values, checksums included.
TEST(Checkpoint, TheStateFileIsHdf5) {
  const TemporaryFolder folder;
  const auto parameters = random_values(2'500'000, 3);
  const std::vector<StateArray> arrays{{"parameters", parameters}};
  const fs::path path = write_checkpoint(folder.path(), 9, kRecipe, kBits, arrays, "t");
  const Hdf5Handle file = open_hdf5_file(path / "state.h5", H5F_ACC_RDONLY);
  EXPECT_EQ(integer_attribute(file.id(), "step", "test"), 9);
  EXPECT_EQ(json::parse(read_text_dataset(file.id(), "recipe", 10'000, "test")), kRecipe);
  EXPECT_EQ(json::parse(read_text_dataset(file.id(), "bits", 10'000, "test")), kBits);
  const Hdf5Handle dataset = open_own_dataset(file.id(), "arrays/parameters", "test");
  const Hdf5Handle creation(H5Dget_create_plist(dataset.id()), H5Pclose);
  EXPECT_EQ(H5Pget_nfilters(creation.id()), 1);
  std::vector<float> values(parameters.size());
  ASSERT_GE(H5Dread(dataset.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  EXPECT_EQ(values, parameters);
}

TEST(Checkpoint, TheNewestThatVerifiesIsUsed) {
  const TemporaryFolder folder;
  write_small(folder.path(), 5);
  write_small(folder.path(), 1'000'000);
  const fs::path newest = write_small(folder.path(), 1'000'001);
  fs::create_directory(folder / "checkpoint-abc");
  fs::create_directory(folder / "checkpoint-000009.tmp-x");
  const auto listed = list_checkpoints(folder.path());
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(listed[0], newest);
  EXPECT_EQ(listed[2], folder / "checkpoint-000005");
  put(newest / "state.h5", "x");
  std::vector<std::string> rejected;
  EXPECT_EQ(latest_checkpoint(folder.path(), rejected), folder / "checkpoint-1000000");
  ASSERT_EQ(rejected.size(), 1U);
  EXPECT_NE(rejected[0].find("checkpoint-1000001 is not used: state.h5"), std::string::npos);
  EXPECT_EQ(latest_checkpoint(folder / "none", rejected), std::nullopt);
}

TEST(Checkpoint, AReplacedOneIsUsedWhenItsSuccessorIsNotThere) {
  const TemporaryFolder folder;
  fs::rename(write_small(folder.path(), 5), folder / "checkpoint-000005.old-t");
  std::vector<std::string> rejected;
  EXPECT_EQ(latest_checkpoint(folder.path(), rejected), folder / "checkpoint-000005.old-t");
}

TEST(Checkpoint, PruningKeepsTheOnlyOneThatVerifies) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3, 4}) write_small(folder.path(), step);
  prune_checkpoints(folder.path(), 0);
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 4U);
  put(folder / "checkpoint-000004/state.h5", "x");
  put(folder / "checkpoint-000003/state.h5", "x");
  prune_checkpoints(folder.path(), 1);
  EXPECT_EQ(list_checkpoints(folder.path()),
            (std::vector<fs::path>{folder / "checkpoint-000004", folder / "checkpoint-000002"}));
}

TEST(Checkpoint, AFailingWriteLeavesTheEarlierOnesAndNoTemporary) {
  const TemporaryFolder folder;
  const fs::path first = write_small(folder.path(), 1);
  const std::vector<float> values(10);
  const std::vector<StateArray> arrays{{"parameters", values}};
  const auto broken = [](const fs::path&) { throw Failure("the adapter cannot be written"); };
  try {
    write_checkpoint(folder.path(), 2, kRecipe, kBits, arrays, "t", broken);
    FAIL() << "the failure was swallowed";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("the adapter cannot be written"), std::string::npos);
  }
  EXPECT_EQ(list_checkpoints(folder.path()), std::vector<fs::path>{first});
  EXPECT_FALSE(fs::exists(folder / "checkpoint-000002.tmp-t"));
  EXPECT_EQ(verify_checkpoint(first), std::nullopt);
}

TEST(Checkpoint, AFullDiskLeavesTheEarlierOneAndSaysWhatWasNeeded) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  const fs::path first = write_small(disk.path(), 1);
  // Refused before writing.
  const std::vector<float> many(2'000'000);
  const std::vector<StateArray> large{{"parameters", many}};
  EXPECT_THROW(write_checkpoint(disk.path(), 2, kRecipe, kBits, large, "t"), Failure);
  // Fits by the estimate; the extra file takes the space away, at HDF5's cost or at its own.
  const std::vector<float> some(300'000);
  const std::vector<StateArray> arrays{{"parameters", some}};
  const auto greedy = [](const fs::path& folder) {
    std::ofstream file(folder / "greedy", std::ios::binary);
    file << std::string(8U << 20U, 'x') << std::flush;
  };
  try {
    write_checkpoint(disk.path(), 2, kRecipe, kBits, arrays, "t", greedy);
    FAIL() << "8 MiB fitted into 4";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("bytes are needed"), std::string::npos) << failure.what();
    EXPECT_NE(std::string(failure.what()).find("No space left"), std::string::npos) << failure.what();
  }
  EXPECT_EQ(list_checkpoints(disk.path()), std::vector<fs::path>{first});
  EXPECT_EQ(read_checkpoint(first).step, 1);
  // With the space back the next one succeeds.
  EXPECT_EQ(verify_checkpoint(write_small(disk.path(), 3)), std::nullopt);
}

TEST(Hdf5, AFullDiskIsAFailureWithTheReason) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  const auto fill = [&] {
    Hdf5Handle file = create_hdf5_file(disk.path() / "large.h5", FileFormat::portable);
    write_text_dataset(file.id(), "text", std::string(6U << 20U, 'x'), "cannot write large.h5");
    file.close("cannot close large.h5");
  };
  try {
    fill();
    FAIL() << "6 MiB fitted into 4";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("No space left"), std::string::npos) << failure.what();
    EXPECT_EQ(std::string(failure.what()).find('\n'), std::string::npos) << failure.what();
  }
}

}  // namespace
}  // namespace ranktune::store
