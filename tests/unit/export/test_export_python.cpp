// PEFT and Transformers are the readers of what is exported, and PEFT's own files are what is read.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "../store/temporary_folder.hpp"
#include "base/file.hpp"
#include "base/safetensors.hpp"
#include "export/adapter.hpp"
#include "export/safetensors_writer.hpp"

namespace ranktune::exporting {
namespace {

namespace fs = std::filesystem;
using ranktune::testing::TemporaryFolder;

constexpr std::int64_t kHidden = 16;
constexpr std::int64_t kInner = 24;
constexpr std::int64_t kKeyValue = 8;  // one of two heads of width 8

// A small random Llama in `model`, made by Transformers, and an input.
const char* const kPrelude = R"(
import torch, json
from transformers import LlamaConfig, LlamaForCausalLM
from peft import PeftModel, LoraConfig, get_peft_model
torch.manual_seed(1)
config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                     num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False)
tokens = torch.arange(10).reshape(1, 10)
)";

class ExportPython : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("RANKTUNE_PYTHON");
    if (python == nullptr || *python == '\0') GTEST_SKIP() << "RANKTUNE_PYTHON is not set";
    python_ = python;
    if (run("import importlib.util as u, sys\nsys.exit(not (u.find_spec('peft') and "
            "u.find_spec('transformers')))") != 0) {
      GTEST_SKIP() << "RANKTUNE_PYTHON has no peft and transformers";
    }
  }

  int run(const std::string& script) {
    std::ofstream(folder_ / "script.py") << script;
    const std::string command =
        "cd '" + folder_.path().string() + "' && LD_PRELOAD= '" + python_ + "' script.py > output.txt 2>&1";
    const int status = std::system(command.c_str());
    output_ = read_file(folder_ / "output.txt");
    return status;
  }

  TemporaryFolder folder_;
  std::string python_;
  std::string output_;
};

std::vector<float> random_values(std::int64_t count, std::mt19937& generator) {
  std::normal_distribution<float> normal(0, 0.2F);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (auto& value : values) value = normal(generator);
  return values;
}

// All seven projections of both layers, A and B random.
Adapter random_adapter(std::int64_t r, bool use_rslora) {
  struct Shape {
    std::string module;
    std::int64_t in, out;
  };
  const std::vector<Shape> shapes{
      {"self_attn.q_proj", kHidden, kHidden},   {"self_attn.k_proj", kHidden, kKeyValue},
      {"self_attn.v_proj", kHidden, kKeyValue}, {"self_attn.o_proj", kHidden, kHidden},
      {"mlp.gate_proj", kHidden, kInner},       {"mlp.up_proj", kHidden, kInner},
      {"mlp.down_proj", kInner, kHidden}};
  Adapter adapter{{"some/model", r, 2.0 * static_cast<double>(r), 0, use_rslora, {}}, {}};
  std::mt19937 generator(11);
  for (const auto& shape : shapes) {
    adapter.config.target_modules.push_back(shape.module.substr(shape.module.find('.') + 1));
    for (int layer = 0; layer < 2; ++layer) {
      const std::string name = "base_model.model.model.layers." + std::to_string(layer) + "." + shape.module;
      adapter.tensors.push_back(
          {name + ".lora_A.weight", {r, shape.in}, random_values(r * shape.in, generator)});
      adapter.tensors.push_back(
          {name + ".lora_B.weight", {shape.out, r}, random_values(shape.out * r, generator)});
    }
  }
  return adapter;
}

TEST_F(ExportPython, PeftLoadsTheAdapterAndComputesWithIt) {
  for (const bool use_rslora : {false, true}) {
    const auto adapter = folder_ / (use_rslora ? "adapter_rslora" : "adapter");
    fs::create_directories(adapter);
    write_adapter(adapter, random_adapter(4, use_rslora), {});
  }
  EXPECT_EQ(run(std::string(kPrelude) + R"(
from safetensors.torch import load_file, safe_open
import copy, math, warnings
warnings.simplefilter('error')
for folder in ('adapter', 'adapter_rslora'):
    base = LlamaForCausalLM(config).eval()
    merged = copy.deepcopy(base)
    model = PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()
    lora = model.peft_config['default']
    assert (lora.r, lora.lora_alpha, lora.inference_mode, lora.task_type) == (4, 8, True, 'CAUSAL_LM'), lora
    assert lora.base_model_name_or_path == 'some/model' and type(lora.lora_alpha) is int
    tensors = load_file(folder + '/adapter_model.safetensors')
    with safe_open(folder + '/adapter_model.safetensors', 'pt') as f:
        assert f.metadata() == {'format': 'pt'}
    assert len(tensors) == 28 and all(t.dtype == torch.float32 for t in tensors.values())
    scaling = 8 / math.sqrt(4) if lora.use_rslora else 8 / 4
    for name, a in tensors.items():
        if '.lora_A.' in name:
            b = tensors[name.replace('.lora_A.', '.lora_B.')]
            module = name.removeprefix('base_model.model.').removesuffix('.lora_A.weight')
            merged.get_submodule(module).weight.data += scaling * b @ a
    with torch.no_grad():
        got, expected, before = model(tokens).logits, merged(tokens).logits, base(tokens).logits
    assert (got - expected).abs().max() < 1e-5, (got - expected).abs().max()
    assert (got - before).abs().max() > 1e-3
    assert lora.use_rslora == (folder == 'adapter_rslora')
)"),
            0)
      << output_;
}

TEST_F(ExportPython, ReadsWhatPeftSaved) {
  ASSERT_EQ(run(std::string(kPrelude) + R"(
model = get_peft_model(LlamaForCausalLM(config), LoraConfig(task_type='CAUSAL_LM', r=3, lora_alpha=6, lora_dropout=0.1,
    target_modules=['v_proj', 'q_proj', 'up_proj'], init_lora_weights=False))
model.save_pretrained('saved')
model.to(torch.bfloat16).save_pretrained('saved16')
from safetensors.torch import load_file
tensors = load_file('saved/adapter_model.safetensors')
json.dump({n: t.flatten().tolist() for n, t in tensors.items()}, open('values.json', 'w'))
tensors = load_file('saved16/adapter_model.safetensors')
json.dump({n: t.float().flatten().tolist() for n, t in tensors.items()}, open('values16.json', 'w'))
)"),
            0)
      << output_;
  for (const std::string suffix : {"", "16"}) {
    const Adapter adapter = read_adapter(folder_ / ("saved" + suffix));
    EXPECT_EQ(adapter.config.r, 3);
    EXPECT_EQ(adapter.config.lora_alpha, 6);
    EXPECT_EQ(adapter.config.lora_dropout, 0.1);
    EXPECT_EQ(adapter.config.target_modules, (std::vector<std::string>{"q_proj", "v_proj", "up_proj"}));
    const auto values = nlohmann::json::parse(read_file(folder_ / ("values" + suffix + ".json")));
    ASSERT_EQ(adapter.tensors.size(), 12U);
    for (const auto& tensor : adapter.tensors) {
      EXPECT_EQ(tensor.values, values.at(tensor.name).get<std::vector<float>>()) << tensor.name;
    }
  }
}

TEST_F(ExportPython, TransformersLoadsTheShards) {
  ASSERT_EQ(
      run(std::string(kPrelude) + "LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained('model')\n"),
      0)
      << output_;
  const SafetensorsFile source(folder_ / "model/model.safetensors");
  std::vector<TensorEntry> entries;
  for (const auto& [name, entry] : source.entries()) entries.push_back({name, entry.dtype, entry.shape});
  fs::create_directory(folder_ / "sharded");
  fs::copy_file(folder_ / "model/config.json", folder_ / "sharded/config.json");
  write_sharded_safetensors(
      folder_ / "sharded", entries,
      [&](const TensorEntry& entry, const Sink& sink) { sink(source.data(entry.name)); }, 2000);
  ASSERT_TRUE(fs::exists(folder_ / "sharded/model.safetensors.index.json"));
  EXPECT_EQ(run(std::string(kPrelude) + R"(
from transformers import AutoModelForCausalLM
one = AutoModelForCausalLM.from_pretrained('model', dtype=torch.bfloat16)
two, info = AutoModelForCausalLM.from_pretrained('sharded', dtype=torch.bfloat16, output_loading_info=True)
assert not info['missing_keys'] and not info['unexpected_keys'], info
for name, tensor in one.state_dict().items():
    assert torch.equal(tensor, two.state_dict()[name]), name
index = json.load(open('sharded/model.safetensors.index.json'))
assert index['metadata']['total_parameters'] == one.num_parameters()
assert index['metadata']['total_size'] == 2 * one.num_parameters()
)"),
            0)
      << output_;
}

}  // namespace
}  // namespace ranktune::exporting
