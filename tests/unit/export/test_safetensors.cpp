#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "../store/temporary_folder.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "base/safetensors.hpp"
#include "export/safetensors_writer.hpp"

namespace ranktune::exporting {
namespace {

namespace fs = std::filesystem;
using ranktune::testing::TemporaryFolder;

// The bytes of a tensor follow from its name.
std::vector<std::byte> content_of(const TensorEntry& entry) {
  std::vector<std::byte> bytes(entry.bytes());
  std::mt19937 generator(static_cast<unsigned>(std::hash<std::string>{}(entry.name)));
  for (auto& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

void fill_in_pieces(const TensorEntry& entry, const Sink& sink) {
  const auto bytes = content_of(entry);
  for (std::size_t at = 0; at < bytes.size(); at += 7)
    sink(std::span(bytes).subspan(at, std::min<std::size_t>(7, bytes.size() - at)));
}

void expect_content(const SafetensorsFile& file, const TensorEntry& entry) {
  ASSERT_TRUE(file.contains(entry.name));
  EXPECT_EQ(file.entries().at(entry.name).dtype, entry.dtype);
  EXPECT_EQ(file.entries().at(entry.name).shape, entry.shape);
  const auto data = file.data(entry.name);
  const auto expected = content_of(entry);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), expected.begin(), expected.end())) << entry.name;
}

const std::vector<TensorEntry> kEntries{{"z", "F32", {3, 5}},
                                        {"a \"quoted\" \xC3\xA9", "BF16", {7}},
                                        {"scalar", "F16", {}},
                                        {"empty", "F32", {0, 4}}};

TEST(SafetensorsWriter, RoundTripInTheOrderGivenAligned) {
  const TemporaryFolder folder;
  for (std::size_t count = 0; count <= kEntries.size(); ++count) {
    const std::vector<TensorEntry> entries(kEntries.begin(),
                                           kEntries.begin() + static_cast<std::ptrdiff_t>(count));
    write_safetensors(folder / "x.safetensors", entries, fill_in_pieces);
    const std::string text = read_file(folder / "x.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, text.data(), 8);
    EXPECT_EQ(length % 8, 0U);
    const SafetensorsFile file(folder / "x.safetensors");
    EXPECT_EQ(file.entries().size(), count);
    EXPECT_EQ(file.metadata().at("format"), "pt");
    for (const auto& entry : entries) expect_content(file, entry);
    if (count > 1) {
      EXPECT_EQ(file.entries().at("z").begin, 0U);
    }
  }
}

TEST(SafetensorsWriter, RefusesWrongAmountsAndNames) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  const std::vector<TensorEntry> one{{"a", "F32", {2}}};
  const std::vector<std::byte> nine(9);
  EXPECT_THROW(write_safetensors(path, one, [&](const auto&, const Sink& sink) { sink(nine); }), Failure);
  EXPECT_THROW(
      write_safetensors(path, one, [&](const auto&, const Sink& sink) { sink(std::span(nine).first(7)); }),
      Failure);
  EXPECT_THROW(write_safetensors(path, {{"a", "F32", {2}}, {"a", "F32", {2}}}, fill_in_pieces), Failure);
  EXPECT_THROW(write_safetensors(path, {{"a", "F32", {-2}}}, fill_in_pieces), Failure);
  EXPECT_THROW(write_safetensors(folder / "missing/x", one, fill_in_pieces), Failure);
  EXPECT_THROW(write_safetensors("/dev/full", one, fill_in_pieces), Failure);
}

TEST(SafetensorsWriter, ShardsHoldEachTensorOnceAndTheIndexFindsIt) {
  const TemporaryFolder folder;
  const std::vector<TensorEntry> entries{
      {"a", "F32", {10}}, {"b", "F32", {10}}, {"c", "F32", {100}}, {"d", "F32", {1}}};
  write_sharded_safetensors(folder.path(), entries, fill_in_pieces, 80);
  const auto index = nlohmann::json::parse(read_file(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 484);
  EXPECT_EQ(index["metadata"]["total_parameters"], 121);
  for (const auto& entry : entries) {
    const std::string shard = index["weight_map"][entry.name];
    expect_content(SafetensorsFile(folder / shard), entry);
  }
  EXPECT_EQ(index["weight_map"]["b"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["d"], "model-00003-of-00003.safetensors");
}

TEST(SafetensorsWriter, ASmallModelIsOneFileWithoutIndex) {
  const TemporaryFolder folder;
  write_sharded_safetensors(folder.path(), kEntries, fill_in_pieces);
  EXPECT_EQ(SafetensorsFile(folder / "model.safetensors").entries().size(), kEntries.size());
  EXPECT_FALSE(fs::exists(folder / "model.safetensors.index.json"));
}

// ---- hostile files ----

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + rest;
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, 'x'));
}

// What the reader says of a file; empty when it accepts it.
std::string refusal(const std::string& content) {
  const TemporaryFolder folder;
  const auto path = folder / "hostile.safetensors";
  std::ofstream(path, std::ios::binary) << content;
  try {
    const SafetensorsFile file(path);
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("hostile.safetensors"), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

TEST(SafetensorsFile, RefusesEachHostileHeaderWithItsReason) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(refusal(file_of(good, 8)), "");
  EXPECT_EQ(refusal(file_of(good + "   ", 8)), "");
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "only 0 bytes"},
      {"1234567", "only 7 bytes"},
      {with_length(std::uint64_t{1} << 63U, good), "claims 9223372036854775808 bytes"},
      {with_length(~std::uint64_t{0}, good), "claims 18446744073709551615 bytes"},
      {with_length(1000, good), "claims 1000 bytes but the file has"},
      {file_of("", 8), "does not start with {"},
      {file_of("[]", 8), "does not start with {"},
      {file_of("{", 8), "no valid JSON"},
      {file_of(good + "x", 8), "no valid JSON"},
      {file_of("{\"a\":" + std::string(100'000, '['), 8), "a list"},
      {file_of("{\"a\":" + std::string(100'000, '{'), 8), "no valid JSON"},
      {file_of("{\"\xFF\":1}", 8), "no valid JSON"},
      {file_of(R"({"a":1})", 8), "a number in the entry a"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "lacks"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8), "lacks"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8), "too long"},
      {file_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "negative"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8), "not an integer"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,8]}})", 8), "no valid JSON"},
      {file_of(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8),
       "too large"},
      {file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", 8),
       "contradict"},
      {file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "contradict"},
      {file_of(R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", 8), "unknown dtype F99"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), "claims bytes 8 to 0"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7), "data section of 7 bytes"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8), "unknown field"},
      {file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "duplicate field"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           8),
       "duplicate name"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
           12),
       "overlap"},
      {file_of(R"({"__metadata__":{"format":1}})", 0), "a number"},
      {file_of(R"({"__metadata__":{"a":"b"},"__metadata__":{"a":"b"}})", 0), "duplicate name"}};
  for (const auto& [content, reason] : cases) {
    const std::string said = refusal(content);
    EXPECT_NE(said.find(reason), std::string::npos) << "expected: " << reason << "\nsaid: " << said;
  }
}

TEST(SafetensorsFile, RandomDamageIsRefusedOrReadWithinBounds) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  write_safetensors(path, kEntries, fill_in_pieces);
  const std::string whole = read_file(path);
  const unsigned seed = std::random_device{}();
  std::mt19937 generator(seed);
  for (int repetition = 0; repetition < 2000; ++repetition) {
    std::string damaged = whole.substr(0, repetition % 3 == 0 ? generator() % whole.size() : whole.size());
    for (int changes = 0; changes < 3 && !damaged.empty(); ++changes)
      damaged[generator() % damaged.size()] = static_cast<char>(generator());
    std::ofstream(path, std::ios::binary) << damaged;
    try {
      const SafetensorsFile file(path);
      unsigned sum = 0;
      for (const auto& [name, entry] : file.entries()) {
        for (const auto byte : file.data(name)) sum += std::to_integer<unsigned>(byte);
      }
      EXPECT_LE(sum, 255U * whole.size()) << "seed " << seed;
    } catch (const UserError&) {
    }
  }
}

TEST(SafetensorsFile, NamesTheTensorThatIsNotThere) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x.safetensors", kEntries, fill_in_pieces);
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_FALSE(file.contains("lm_head.weight"));
  EXPECT_THROW(static_cast<void>(file.data("lm_head.weight")), UserError);
  EXPECT_EQ(file.path(), folder / "x.safetensors");
  EXPECT_EQ(dtype_bytes("BF16"), 2U);
  EXPECT_THROW(dtype_bytes("F99"), UserError);
}

}  // namespace
}  // namespace ranktune::exporting
