#include "train/gguf.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/error.hpp"
#include "model/rope.hpp"

namespace ranktune::train {
namespace {

namespace fs = std::filesystem;
using exporting::GgufFile;
using exporting::GgufTensor;
using exporting::GgufType;

constexpr std::uint32_t kQuantizationVersion = 2;

// llama.cpp's name of the architecture.
std::string architecture(const model::ModelConfig& config) {
  return config.model_type == "mistral" ? "llama" : config.model_type;
}

// llama.cpp rotates neighbouring channels in this architecture, Transformers those half a head apart.
bool interleaves(const model::ModelConfig& config) {
  return architecture(config) == "llama";
}

std::uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return 0;
    case GgufType::f16:
      return 1;
    case GgufType::q8_0:
      return 7;
    case GgufType::bf16:
      return 32;
  }
  throw Failure("unknown GGUF type");
}

// "model.layers.3.self_attn.q_proj.weight" as "blk.3.attn_q.weight".
std::string gguf_name(const std::string& name) {
  static const std::map<std::string, std::string> kModel{{"model.embed_tokens.weight", "token_embd.weight"},
                                                         {"model.norm.weight", "output_norm.weight"},
                                                         {"lm_head.weight", "output.weight"}};
  static const std::map<std::string, std::string> kBlock{
      {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  if (const auto found = kModel.find(name); found != kModel.end()) return found->second;
  const std::string prefix = "model.layers.";
  RT_CHECK(name.starts_with(prefix), "a tensor of a layer: " + name);
  const auto number_end = name.find('.', prefix.size());
  const auto kind = name.rfind('.');
  const std::string layer = name.substr(prefix.size(), number_end - prefix.size());
  return "blk." + layer + "." + kBlock.at(name.substr(number_end + 1, kind - number_end - 1)) +
         name.substr(kind);
}

// Rows [heads, 2, head_dim / 2] as [heads, head_dim / 2, 2].
at::Tensor interleaved(const at::Tensor& rows, std::int64_t heads) {
  const auto shape = rows.sizes().vec();
  const std::int64_t half = shape.front() / heads / 2;
  return rows.reshape({heads, 2, half, -1}).transpose(1, 2).reshape(shape);
}

at::Tensor value_of(const MergedWeights& merged, const model::ModelConfig& config, const std::string& name) {
  at::Tensor value = merged.value(name);
  if (!interleaves(config)) return value;
  if (name.find(".q_proj.") != std::string::npos) return interleaved(value, config.heads);
  if (name.find(".k_proj.") != std::string::npos) return interleaved(value, config.kv_heads);
  return value;
}

// Blocks of 32 values: a scale in fp16, the largest magnitude / 127, and 32 integers (quantize_row_q8_0_ref
// of ggml-quants.c).
at::Tensor quantized(const at::Tensor& values) {
  constexpr std::int64_t kBytes = 2 + exporting::kQ8Block;
  const std::int64_t blocks = values.numel() / exporting::kQ8Block;
  at::Tensor result = at::empty({blocks * kBytes}, at::kByte);
  const float* from = values.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<std::uint8_t>();
  at::parallel_for(0, blocks, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const float* x = from + block * exporting::kQ8Block;
      float largest = 0;
      for (std::int64_t i = 0; i < exporting::kQ8Block; ++i) largest = std::max(largest, std::abs(x[i]));
      const float scale = largest / 127.0F;
      const float inverse = scale != 0 ? 1.0F / scale : 0.0F;
      const at::Half stored(scale);
      std::memcpy(to + block * kBytes, &stored.x, 2);
      for (std::int64_t i = 0; i < exporting::kQ8Block; ++i) {
        to[block * kBytes + 2 + i] =
            std::bit_cast<std::uint8_t>(static_cast<std::int8_t>(std::round(x[i] * inverse)));
      }
    }
  });
  return result;
}

at::Tensor encoded(const at::Tensor& values, GgufType type) {
  switch (type) {
    case GgufType::f32:
      return values.contiguous();
    case GgufType::f16:
      return values.contiguous().to(at::kHalf);
    case GgufType::bf16:
      return values.contiguous().to(at::kBFloat16);
    case GgufType::q8_0:
      return quantized(values.contiguous());
  }
  throw Failure("unknown GGUF type");
}

GgufType type_of(const exporting::TensorEntry& entry, GgufType wanted) {
  if (entry.shape.size() < 2) return GgufType::f32;
  const bool whole_blocks = entry.shape.back() % exporting::kQ8Block == 0;
  return wanted == GgufType::q8_0 && !whole_blocks ? GgufType::f16 : wanted;
}

// llama3's stretching, as what each frequency is divided by.
std::vector<float> frequency_factors(const model::ModelConfig& config) {
  model::RopeConfig plain;
  plain.theta = config.rope.theta;
  std::vector<float> factors = model::rope_inverse_frequencies(plain, config.head_dim);
  const std::vector<float> stretched = model::rope_inverse_frequencies(config.rope, config.head_dim);
  for (std::size_t i = 0; i < factors.size(); ++i) factors[i] /= stretched[i];
  return factors;
}

void add_model_keys(GgufFile& file, const model::ModelConfig& config, GgufType type,
                    const fs::path& model_folder) {
  const std::string prefix = architecture(config) + ".";
  const auto count = [&](const char* key, std::int64_t value) {
    file.add_count(prefix + key, static_cast<std::uint32_t>(value));
  };
  file.add_text("general.architecture", architecture(config));
  file.add_text("general.type", "model");
  file.add_text("general.name", fs::weakly_canonical(model_folder).filename().string());
  file.add_count("general.file_type", file_type(type));
  file.add_count("general.quantization_version", kQuantizationVersion);
  count("vocab_size", config.vocab_size);
  count("context_length", config.max_positions);
  count("embedding_length", config.hidden_size);
  count("block_count", config.layers);
  count("feed_forward_length", config.intermediate_size);
  count("attention.head_count", config.heads);
  count("attention.head_count_kv", config.kv_heads);
  count("attention.key_length", config.head_dim);
  count("attention.value_length", config.head_dim);
  count("rope.dimension_count", config.head_dim);
  file.add_number(prefix + "attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_norm_eps));
  file.add_number(prefix + "rope.freq_base", static_cast<float>(config.rope.theta));
  if (config.rope.type == model::RopeConfig::Type::linear) {
    file.add_text(prefix + "rope.scaling.type", "linear");
    file.add_number(prefix + "rope.scaling.factor", static_cast<float>(config.rope.factor));
  }
}

}  // namespace

GgufType gguf_type(const std::string& name) {
  if (name == "f32") return GgufType::f32;
  if (name == "f16") return GgufType::f16;
  if (name == "bf16") return GgufType::bf16;
  if (name == "q8_0") return GgufType::q8_0;
  throw Failure("unknown GGUF type " + name);
}

void check_gguf(const model::ModelConfig& config, const fs::path& model_folder) {
  std::vector<std::string> problems;
  const auto refuse = [&](const std::string& what) {
    problems.push_back(fmt::format("{}: {} cannot be written to GGUF; leave GGUF out and give merged_16bit",
                                   (model_folder / "config.json").string(), what));
  };
  using Rope = model::RopeConfig::Type;
  const std::string name = architecture(config);
  if (std::any_of(config.windows.begin(), config.windows.end(),
                  [&](std::int64_t window) { return window > 0 && window < config.max_positions; })) {
    refuse("a sliding window");
  }
  if (config.rope.type == Rope::dynamic || config.rope.type == Rope::yarn) refuse("dynamic or yarn RoPE");
  if (name != "llama" && (config.o_bias || config.mlp_bias || config.qkv_bias != (name == "qwen2")))
    refuse("a bias that " + config.model_type + " does not usually have (or lacks)");
  try {
    GgufFile unused;
    add_gguf_tokenizer(unused, config.vocab_size, model_folder);
  } catch (const UserError& error) {
    problems.insert(problems.end(), error.sentences().begin(), error.sentences().end());
  }
  if (!problems.empty()) throw UserError(problems);
}

void write_gguf(const fs::path& path, const std::string& type, const MergedWeights& merged,
                const model::ModelConfig& config, const fs::path& model_folder) {
  check_gguf(config, model_folder);
  const GgufType wanted = gguf_type(type);
  GgufFile file;
  add_model_keys(file, config, wanted, model_folder);
  add_gguf_tokenizer(file, config.vocab_size, model_folder);
  std::map<std::string, std::string> sources;  // by the name in the file
  std::vector<float> factors;
  if (config.rope.type == model::RopeConfig::Type::llama3) {
    factors = frequency_factors(config);
    file.add_tensor({"rope_freqs.weight", {config.head_dim / 2}, GgufType::f32});
  }
  for (const exporting::TensorEntry& entry : merged.entries()) {
    const std::string name = gguf_name(entry.name);
    sources[name] = entry.name;
    file.add_tensor({name, entry.shape, type_of(entry, wanted)});
  }
  file.write(path, [&](const GgufTensor& tensor, const GgufFile::Sink& sink) {
    const auto source = sources.find(tensor.name);
    if (source == sources.end()) {
      sink(std::as_bytes(std::span(factors)));
      return;
    }
    const at::Tensor bytes = encoded(value_of(merged, config, source->second), tensor.type);
    sink({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  });
}

}  // namespace ranktune::train
