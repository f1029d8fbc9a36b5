#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../store/temporary_folder.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "export/adapter.hpp"
#include "export/safetensors_writer.hpp"

namespace ranktune::exporting {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ranktune::testing::TemporaryFolder;

const std::string kLayer = "base_model.model.model.layers.0.";

// A: [r, in] with in = 8, B: [out, r] with out = 4.
Adapter small_adapter() {
  Adapter adapter{{"Qwen/Qwen3-8B", 2, 4, 0.05, true, {"q_proj", "down_proj"}}, {}};
  float next = 0.125F;
  for (const std::string module : {"mlp.down_proj", "self_attn.q_proj"}) {
    AdapterTensor a{kLayer + module + ".lora_A.weight", {2, 8}, {}};
    AdapterTensor b{kLayer + module + ".lora_B.weight", {4, 2}, {}};
    for (int i = 0; i < 16; ++i) a.values.push_back(next += 0.25F);
    for (int i = 0; i < 8; ++i) b.values.push_back(-(next += 0.25F));
    adapter.tensors.push_back(a);
    adapter.tensors.push_back(b);
  }
  return adapter;
}

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

void change_config(const fs::path& folder, const std::string& key, const json& value) {
  json config = json::parse(read_file(folder / "adapter_config.json"));
  config[key] = value;
  put(folder / "adapter_config.json", config.dump());
}

std::string refusal(const fs::path& folder) {
  try {
    read_adapter(folder);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Adapter, RoundTrip) {
  const TemporaryFolder folder;
  const TemporaryFolder tokenizer;
  put(tokenizer / "tokenizer.json", "{}");
  put(tokenizer / "model.safetensors", "not wanted");
  const Adapter written = small_adapter();
  write_adapter(folder.path(), written, tokenizer.path());
  EXPECT_EQ(read_file(folder / "tokenizer.json"), "{}");
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
  const Adapter read = read_adapter(folder.path());
  EXPECT_EQ(read.config.base_model_name_or_path, "Qwen/Qwen3-8B");
  EXPECT_EQ(read.config.r, 2);
  EXPECT_EQ(read.config.lora_alpha, 4);
  EXPECT_EQ(read.config.lora_dropout, 0.05);
  EXPECT_TRUE(read.config.use_rslora);
  EXPECT_EQ(read.config.target_modules, (std::vector<std::string>{"q_proj", "down_proj"}));
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (std::size_t i = 0; i < read.tensors.size(); ++i) {
    EXPECT_EQ(read.tensors[i].name, written.tensors[i].name);
    EXPECT_EQ(read.tensors[i].shape, written.tensors[i].shape);
    EXPECT_EQ(read.tensors[i].values, written.tensors[i].values);
  }
}

TEST(Adapter, AlphaIsAnIntegerWhereItIsWhole) {
  const TemporaryFolder folder;
  Adapter adapter = small_adapter();
  write_adapter(folder.path(), adapter, {});
  EXPECT_TRUE(json::parse(read_file(folder / "adapter_config.json"))["lora_alpha"].is_number_integer());
  adapter.config.lora_alpha = 2.5;
  write_adapter(folder.path(), adapter, {});
  EXPECT_EQ(json::parse(read_file(folder / "adapter_config.json"))["lora_alpha"], 2.5);
  EXPECT_EQ(read_adapter_config(folder.path()).lora_alpha, 2.5);
}

TEST(Adapter, HalvesAreConverted) {
  const TemporaryFolder folder;
  write_adapter(folder.path(), small_adapter(), {});
  // Exponents, subnormals, signs, infinities and NaN of both types, against values known from their
  // definitions.
  const std::vector<std::uint16_t> halves{0x3C00, 0xC000, 0x0001, 0x8000, 0x7BFF, 0x7C00, 0x7E01, 0x3555};
  const std::vector<float> half_values{1, -2, 0x1p-24F, -0.0F, 65504, INFINITY, NAN, 0x1.554p-2F};
  const std::vector<std::uint16_t> brains{0x3F80, 0xC000, 0x0001, 0x8000, 0x7F7F, 0x7F80, 0x7FC1, 0x3EAB};
  const std::vector<float> brain_values{1, -2, 0x1p-133F, -0.0F, 0x1.FEp127F, INFINITY, NAN, 0x1.56p-2F};
  const std::string name = kLayer + "self_attn.q_proj.lora_";
  change_config(folder.path(), "target_modules", {"q_proj"});
  write_safetensors(folder / "adapter_model.safetensors",
                    {{name + "A.weight", "F16", {2, 4}}, {name + "B.weight", "BF16", {4, 2}}},
                    [&](const TensorEntry& entry, const Sink& sink) {
                      sink(std::as_bytes(std::span(entry.dtype == "F16" ? halves : brains)));
                    });
  const Adapter adapter = read_adapter(folder.path());
  for (std::size_t i = 0; i < 8; ++i) {
    if (i == 6) {
      EXPECT_TRUE(std::isnan(adapter.tensors[0].values[i]) && std::isnan(adapter.tensors[1].values[i]));
      continue;
    }
    EXPECT_EQ(adapter.tensors[0].values[i], half_values[i]) << i;
    EXPECT_EQ(adapter.tensors[1].values[i], brain_values[i]) << i;
    EXPECT_EQ(std::signbit(adapter.tensors[0].values[i]), std::signbit(half_values[i])) << i;
  }
}

TEST(Adapter, AllLinearMeansTheSevenProjections) {
  const TemporaryFolder folder;
  write_adapter(folder.path(), small_adapter(), {});
  change_config(folder.path(), "target_modules", "all-linear");
  EXPECT_EQ(read_adapter_config(folder.path()).target_modules.size(), 7U);
  EXPECT_NE(refusal(folder.path()).find("k_proj is in target_modules but has no tensors"), std::string::npos);
}

TEST(Adapter, RefusesByNameWhatIsNotSupported) {
  const std::vector<std::pair<std::string, json>> cases{{"peft_type", "IA3"},
                                                        {"peft_type", nullptr},
                                                        {"task_type", "SEQ_CLS"},
                                                        {"bias", "all"},
                                                        {"rank_pattern", {{"q_proj", 4}}},
                                                        {"alpha_pattern", {{"q_proj", 4}}},
                                                        {"modules_to_save", {"lm_head"}},
                                                        {"layers_to_transform", {0}},
                                                        {"layers_to_transform", 0},
                                                        {"lora_bias", true},
                                                        {"use_dora", true},
                                                        {"fan_in_fan_out", true},
                                                        {"target_parameters", {"x"}},
                                                        {"init_lora_weights", "pissa"},
                                                        {"a_feature_of_tomorrow", {{"x", 1}}},
                                                        {"target_modules", "q_proj|k_proj"},
                                                        {"target_modules", {"q_proj", "lm_head"}},
                                                        {"target_modules", json::array()},
                                                        {"target_modules", {1}},
                                                        {"r", 0},
                                                        {"r", 1e30},
                                                        {"r", "16"},
                                                        {"r", 16.5},
                                                        {"lora_alpha", "x"},
                                                        {"lora_alpha", -1},
                                                        {"lora_dropout", 1},
                                                        {"use_rslora", "yes"}};
  for (const auto& [key, value] : cases) {
    const TemporaryFolder folder;
    write_adapter(folder.path(), small_adapter(), {});
    change_config(folder.path(), key, value);
    EXPECT_NE(refusal(folder.path()).find("adapter_config.json: " + key + " "), std::string::npos)
        << key << " = " << value << ": " << refusal(folder.path());
  }
}

TEST(Adapter, ReportsAllProblemsTogether) {
  const TemporaryFolder folder;
  write_adapter(folder.path(), small_adapter(), {});
  change_config(folder.path(), "use_dora", true);
  change_config(folder.path(), "r", -1);
  try {
    read_adapter_config(folder.path());
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.sentences().size(), 2U);
  }
}

// Writes other tensors beside the configuration of small_adapter().
std::string refusal_of_tensors(const std::vector<TensorEntry>& entries) {
  const TemporaryFolder folder;
  write_adapter(folder.path(), small_adapter(), {});
  write_safetensors(
      folder / "adapter_model.safetensors", entries,
      [](const TensorEntry& entry, const Sink& sink) { sink(std::vector<std::byte>(entry.bytes())); });
  return refusal(folder.path());
}

TEST(Adapter, RefusesTensorsThatContradictTheConfiguration) {
  const TensorEntry q_a{kLayer + "self_attn.q_proj.lora_A.weight", "F32", {2, 8}};
  const TensorEntry q_b{kLayer + "self_attn.q_proj.lora_B.weight", "F32", {4, 2}};
  const TensorEntry down_a{kLayer + "mlp.down_proj.lora_A.weight", "F32", {2, 8}};
  const TensorEntry down_b{kLayer + "mlp.down_proj.lora_B.weight", "F32", {4, 2}};
  EXPECT_EQ(refusal_of_tensors({q_a, q_b, down_a, down_b}), "");
  const auto expect = [&](std::vector<TensorEntry> entries, const std::string& reason) {
    EXPECT_NE(refusal_of_tensors(entries).find(reason), std::string::npos)
        << reason << ": " << refusal_of_tensors(entries);
  };
  expect({q_a, down_a, down_b}, "q_proj has no lora_B");
  expect({q_b, down_a, down_b}, "q_proj has no lora_A");
  expect({q_a, q_b}, "down_proj is in target_modules but has no tensors");
  expect({q_a, q_b, down_a, {down_b.name, "F32", {4, 3}}}, "the shape [4, 3], which contradicts r = 2");
  expect({q_a, q_b, down_a, {down_b.name, "F32", {8}}}, "the shape [8]");
  expect({q_a, q_b, down_a, {down_b.name, "F32", {0, 2}}}, "the shape [0, 2]");
  expect({q_a, q_b, down_a, {down_b.name, "I32", {4, 2}}}, "has dtype I32");
  expect({q_a, q_b, down_a, down_b, {kLayer + "self_attn.k_proj.lora_A.weight", "F32", {2, 8}}},
         "none of the target_modules");
  expect({q_a, q_b, down_a, down_b, {kLayer + "mlp.q_proj.lora_A.weight", "F32", {2, 8}}}, "no LoRA matrix");
  expect({q_a, q_b, down_a, down_b, {"lm_head.weight", "F32", {2, 8}}}, "lm_head.weight is no LoRA matrix");
}

TEST(Adapter, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_NE(refusal(folder.path()).find("no adapter_config.json"), std::string::npos);
  write_adapter(folder.path(), small_adapter(), {});
  fs::rename(folder / "adapter_model.safetensors", folder / "adapter_model.bin");
  EXPECT_NE(refusal(folder.path()).find("pickle"), std::string::npos);
  put(folder / "adapter_config.json", "[");
  EXPECT_NE(refusal(folder.path()).find("no valid JSON"), std::string::npos);
  EXPECT_THROW(write_adapter(folder / "missing", small_adapter(), {}), Failure);
}

}  // namespace
}  // namespace ranktune::exporting
