// The tokenizer's part of a GGUF file.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/file.hpp"
#include "data/tokenizer.hpp"
#include "train/gguf.hpp"

namespace ranktune::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Kinds of tokens (llama.h).
constexpr std::int32_t kNormal = 1;
constexpr std::int32_t kControl = 3;
constexpr std::int32_t kUserDefined = 4;
constexpr std::int32_t kUnused = 5;

// Expressions of pre-tokenizers that llama.cpp has built in (llama-vocab.cpp), and its names for them.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json parsed(const fs::path& path) {
  if (!fs::exists(path)) return json::object();
  json value = json::parse(read_file(path), nullptr, false);
  return value.is_object() ? value : json::object();
}

json part(const json& object, const char* key) {
  return object.is_object() ? object.value(key, json()) : json();
}

// The steps of a pre-tokenizer.
std::vector<json> steps_of(const json& pre_tokenizer) {
  if (part(pre_tokenizer, "type") == "Sequence") return part(pre_tokenizer, "pretokenizers");
  return {pre_tokenizer};
}

// The name of the pre-tokenizer; nothing where llama.cpp has none that splits alike.
std::optional<std::string> pre_tokenizer_name(const json& tokenizer) {
  std::vector<json> steps = steps_of(part(tokenizer, "pre_tokenizer"));
  const json last = steps.back();
  steps.pop_back();
  if (part(last, "type") != "ByteLevel" || part(last, "add_prefix_space") == true) return std::nullopt;
  const bool splits = last.value("use_regex", true);  // by GPT-2's expression
  if (steps.empty()) return splits ? std::optional("gpt-2") : std::nullopt;
  const json& first = steps.front();
  if (steps.size() > 1) return std::nullopt;
  if (splits) {
    const bool digits = part(first, "type") == "Digits" && part(first, "individual_digits") == true;
    return digits ? std::optional("smollm") : std::nullopt;
  }
  if (part(first, "type") != "Split" || part(first, "behavior") != "Isolated" ||
      part(first, "invert") == true)
    return std::nullopt;
  const json expression = part(part(first, "pattern"), "Regex");
  if (expression == kLlama3) return "llama-bpe";
  if (expression == kQwen2) return "qwen2";
  return std::nullopt;
}

// Why llama.cpp could not make the same tokens; empty: it can.
std::string why_not(const json& tokenizer) {
  const json model = part(tokenizer, "model");
  const auto name = pre_tokenizer_name(tokenizer);
  if (part(model, "byte_fallback") == true || !name)
    return "is not byte-level BPE with a pre-tokenizer of GPT-2, SmolLM, Llama 3 or Qwen";
  if ((part(model, "ignore_merges") == true) != (*name == "llama-bpe"))
    return "has another ignore_merges than llama.cpp takes for its pre-tokenizer";
  // llama.cpp does not normalise; for Qwen's NFC its own conversion does without, too.
  const json normalizer = part(tokenizer, "normalizer");
  if (!normalizer.is_null() && part(normalizer, "type") != "NFC") return "has a normalizer";
  return {};
}

std::string merge_text(const json& merge) {
  return merge.is_array() ? merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>()
                          : merge.get<std::string>();
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> kinds;
};

Vocabulary vocabulary_of(const json& tokenizer, std::int64_t size) {
  Vocabulary all;
  for (std::int64_t id = 0; id < size; ++id) {
    all.tokens.push_back(fmt::format("[PAD{}]", id));
    all.kinds.push_back(kUnused);
  }
  const auto place = [&](const json& id, const std::string& text, std::int32_t kind) {
    const auto at = id.get<std::size_t>();
    if (at >= all.tokens.size()) return;  // check_vocabulary refuses such a model
    all.tokens[at] = text;
    all.kinds[at] = kind;
  };
  for (const auto& [text, id] : tokenizer.at("model").at("vocab").items()) place(id, text, kNormal);
  for (const json& added : tokenizer.value("added_tokens", json::array())) {
    place(added.at("id"), added.at("content"), added.value("special", false) ? kControl : kUserDefined);
  }
  return all;
}

std::string chat_template(const fs::path& folder, const json& config) {
  if (fs::exists(folder / "chat_template.jinja")) return read_file(folder / "chat_template.jinja");
  const json found = part(config, "chat_template");
  if (found.is_string()) return found;
  if (!found.is_array()) return {};
  for (const json& entry : found) {
    if (part(entry, "name") == "default" && part(entry, "template").is_string()) return entry.at("template");
  }
  return {};
}

// Ids of the tokens that tokenizer_config.json gives a role, and whether a text begins with BOS.
void add_roles(exporting::GgufFile& file, const json& config, const data::Tokenizer& tokenizer,
               const std::string& where) {
  const std::map<std::string, const char*> roles{{"bos_token", "tokenizer.ggml.bos_token_id"},
                                                 {"eos_token", "tokenizer.ggml.eos_token_id"},
                                                 {"pad_token", "tokenizer.ggml.padding_token_id"},
                                                 {"unk_token", "tokenizer.ggml.unknown_token_id"}};
  std::optional<std::int32_t> bos;
  for (const auto& [role, key] : roles) {
    json token = part(config, role.c_str());
    if (token.is_object()) token = part(token, "content");
    const auto id = token.is_string() ? tokenizer.token_id(token.get<std::string>()) : std::nullopt;
    if (!id) continue;
    file.add_count(key, static_cast<std::uint32_t>(*id));
    if (role == "bos_token") bos = id;
  }
  const auto around = tokenizer.encode("");
  const bool begins = around.size() == 1 && bos && around.front() == *bos && tokenizer.added_before() == 1;
  if (!around.empty() && !begins) {
    throw UserError(
        fmt::format("{}: puts other tokens around a text than its bos_token before it, which cannot "
                    "be written to GGUF; leave GGUF out and give merged_16bit",
                    where));
  }
  file.add_flag("tokenizer.ggml.add_bos_token", begins);
  file.add_flag("tokenizer.ggml.add_eos_token", false);
}

}  // namespace

void add_gguf_tokenizer(exporting::GgufFile& file, std::int64_t vocab_size, const fs::path& model_folder) {
  const data::Tokenizer checked = data::Tokenizer::from_folder(model_folder);
  const std::string where = (model_folder / "tokenizer.json").string();
  const json tokenizer = parsed(where);
  if (const std::string why = why_not(tokenizer); !why.empty()) {
    throw UserError(
        fmt::format("{}: the tokenizer {} and cannot be written to GGUF; leave GGUF out and give "
                    "merged_16bit",
                    where, why));
  }
  const json config = parsed(model_folder / "tokenizer_config.json");
  const Vocabulary vocabulary = vocabulary_of(tokenizer, vocab_size);
  std::vector<std::string> merges;
  for (const json& merge : tokenizer.at("model").at("merges")) merges.push_back(merge_text(merge));
  file.add_text("tokenizer.ggml.model", "gpt2");
  file.add_text("tokenizer.ggml.pre", *pre_tokenizer_name(tokenizer));
  file.add_texts("tokenizer.ggml.tokens", vocabulary.tokens);
  file.add_integers("tokenizer.ggml.token_type", vocabulary.kinds);
  file.add_texts("tokenizer.ggml.merges", merges);
  add_roles(file, config, checked, where);
  if (const std::string text = chat_template(model_folder, config); !text.empty())
    file.add_text("tokenizer.chat_template", text);
}

}  // namespace ranktune::train
