#include "model/weights.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "export/safetensors_writer.hpp"

namespace ranktune::model {
namespace {

class Weights : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("ranktune-weights-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& file, const std::vector<std::string>& names) {
    std::vector<exporting::TensorEntry> entries;
    for (const std::string& name : names) entries.push_back({name, "F32", {2, 3}});
    const std::vector<std::byte> zeros(24);
    exporting::write_safetensors(folder_ / file, entries,
                                 [&](const auto&, const exporting::Sink& sink) { sink(zeros); });
  }
  void index(const std::string& text) { std::ofstream(folder_ / "model.safetensors.index.json") << text; }
  std::string refusal() {
    try {
      const WeightFiles files(folder_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(Weights, OneFile) {
  write("model.safetensors", {"a", "b"});
  const WeightFiles files(folder_);
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(files.total_bytes(), 48U);
  EXPECT_EQ(files.view("a").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_THROW(files.view("c"), UserError);
}

TEST_F(Weights, Shards) {
  write("one.safetensors", {"a"});
  write("two.safetensors", {"b"});
  index(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  EXPECT_EQ(WeightFiles(folder_).names().size(), 2U);
}

TEST_F(Weights, AnIndexMayNotLeaveTheFolder) {
  write("one.safetensors", {"a"});
  for (const char* file : {"../one.safetensors", "/etc/passwd", "..", ""}) {
    index(std::string(R"({"weight_map": {"a": ")") + file + "\"}}");
    EXPECT_NE(refusal().find("is not a plain file name"), std::string::npos) << file << ": " << refusal();
  }
}

TEST_F(Weights, WhatIsMissingIsNamed) {
  EXPECT_NE(refusal().find("model.safetensors"), std::string::npos);
  write("one.safetensors", {"a"});
  index(R"({"weight_map": {"b": "one.safetensors"}})");
  EXPECT_NE(refusal().find("\"b\" is missing"), std::string::npos);
  index(R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_NE(refusal().find("gone.safetensors"), std::string::npos);
  index(R"({"weight_map": [1)");
  EXPECT_NE(refusal().find("is not a safetensors index"), std::string::npos);
}

}  // namespace
}  // namespace ranktune::model
