#include "app/inputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "base/child_process.hpp"
#include "base/error.hpp"
#include "data/chat.hpp"
#include "data/hub.hpp"
#include "train/gguf.hpp"
#include "train/loading.hpp"

namespace ranktune::app {
namespace {

// Runs a check and keeps its sentences; true when it found nothing.
bool passes(std::vector<std::string>& problems, const std::function<void()>& check) {
  try {
    check();
    return true;
  } catch (const UserError& error) {
    problems.insert(problems.end(), error.sentences().begin(), error.sentences().end());
    return false;
  }
}

exporting::AdapterConfig adapter_of_options(const TrainOptions& options) {
  exporting::AdapterConfig adapter;
  adapter.base_model_name_or_path = options.model_name;
  adapter.r = options.r;
  adapter.lora_alpha = static_cast<double>(options.lora_alpha);
  adapter.lora_dropout = options.lora_dropout;
  adapter.use_rslora = options.use_rslora;
  adapter.target_modules = options.target_modules;
  return adapter;
}

// An explicit flag that contradicts the adapter to start from is refused: neither is silently changed.
void refuse_contradictions(const TrainOptions& options, const exporting::AdapterConfig& adapter) {
  const exporting::AdapterConfig asked = adapter_of_options(options);
  std::vector<std::string> problems;
  const auto compare = [&](const char* flag, const auto& wanted, const auto& found) {
    if (!options.is_explicit(flag) || wanted == found) return;
    problems.push_back(
        fmt::format("--{} {} contradicts the adapter of --init_adapter, which has {}; leave the flag out",
                    flag, wanted, found));
  };
  compare("r", asked.r, adapter.r);
  compare("lora_alpha", asked.lora_alpha, adapter.lora_alpha);
  compare("lora_dropout", asked.lora_dropout, adapter.lora_dropout);
  compare("use_rslora", asked.use_rslora, adapter.use_rslora);
  const auto joined = [](std::vector<std::string> modules) {
    std::sort(modules.begin(), modules.end());
    return fmt::format("{}", fmt::join(modules, ","));
  };
  compare("target_modules", joined(asked.target_modules), joined(adapter.target_modules));
  if (!problems.empty()) throw UserError(problems);
}

void check_vocabulary(const data::Tokenizer& tokenizer, const model::ModelConfig& model,
                      const std::filesystem::path& folder) {
  if (tokenizer.vocab_size() > model.vocab_size) {
    throw UserError(
        fmt::format("{}: the tokenizer has ids up to {}, but config.json has vocab_size = {}; they do not "
                    "belong together",
                    folder.string(), tokenizer.vocab_size() - 1, model.vocab_size));
  }
  if (!tokenizer.eos_token()) {
    throw UserError(folder.string() +
                    ": tokenizer_config.json names no eos_token, with which every prompt has to end");
  }
}

// One source, or several with commas between; a name with a comma that exists is one.
std::vector<std::filesystem::path> dataset_sources(const std::string& dataset) {
  std::vector<std::filesystem::path> sources;
  std::vector<std::string> problems;
  std::error_code ignored;
  std::string rest = dataset;
  while (true) {
    const auto comma = std::filesystem::exists(rest, ignored) ? std::string::npos : rest.find(',');
    passes(problems,
           [&] { sources.push_back(data::resolve_hub_name(rest.substr(0, comma), data::HubKind::dataset)); });
    if (comma == std::string::npos) break;
    rest = rest.substr(comma + 1);
  }
  if (!problems.empty()) throw UserError(problems);
  return sources;
}

// The rows that --dataset or another option names.
data::Records read_dataset(const TrainOptions& options, const std::string& dataset, std::int64_t limit) {
  data::ReadOptions how;
  how.format = data::parse_format(options.dataset_format);
  how.limit = limit;
  return data::read_records(dataset_sources(dataset), how);
}

}  // namespace

data::PromptForm prompt_form_of(const TrainOptions& options, data::RowFormat format,
                                const std::filesystem::path& model_folder) {
  using data::PromptTemplate;
  using data::RowFormat;
  const std::string& asked = options.prompt_template;
  const std::string_view name = data::format_name(format);
  const bool is_alpaca = format == RowFormat::alpaca;
  const bool is_chat = format == RowFormat::messages || format == RowFormat::conversations;
  const bool is_text = format == RowFormat::text || format == RowFormat::raw_text;
  if (options.train_on_responses_only && is_text) {
    throw UserError(
        fmt::format("--train_on_responses_only needs rows with responses, and {} has none; leave it out",
                    format == RowFormat::text ? "the format text" : "--raw_text_file"));
  }
  if (is_chat ? asked == "auto" || asked == "chat" : asked == "chat" && !is_text) {
    data::PromptForm form = PromptTemplate::chat;
    if (!model_folder.empty()) form.chat = data::read_chat_template(model_folder, options.chat_template);
    form.chat.date = options.chat_date.value_or("");
    return form;
  }
  if (asked == "auto") return is_alpaca ? PromptTemplate::unsloth : PromptTemplate::plain;
  if (!is_alpaca) {
    throw UserError(fmt::format(
        "--prompt_template {} is for rows with {}, not for the format {}; leave it out", asked,
        asked == "chat" ? "turns or with an instruction and its output" : "instruction and output", name));
  }
  if (asked == "unsloth") return PromptTemplate::unsloth;
  if (asked == "alpaca") return PromptTemplate::alpaca;
  std::error_code ignored;
  if (!std::filesystem::exists(asked, ignored)) {
    throw UserError(fmt::format(
        "--prompt_template must be auto, unsloth, alpaca, chat or a file, and there is no file '{}'", asked));
  }
  return data::read_prompt_file(asked);
}

data::TokenizeOptions tokenize_options(const TrainOptions& options, const std::filesystem::path& model_folder,
                                       const data::Records& records, int threads) {
  data::TokenizeOptions how;
  how.prompt_template = prompt_form_of(options, records.format, model_folder);
  how.python = python_program();
  how.responses_only = options.train_on_responses_only;
  if (records.format == data::RowFormat::raw_text) {
    how.chunk_size = options.chunk_size;
    how.stride = options.stride;
  }
  how.max_seq_length = options.max_seq_length;
  how.threads = threads;
  return how;
}

model::LoraConfig lora_config(const exporting::AdapterConfig& adapter) {
  model::LoraConfig lora;
  lora.r = adapter.r;
  lora.alpha = adapter.lora_alpha;
  lora.rslora = adapter.use_rslora;
  lora.dropout = adapter.lora_dropout;
  for (std::size_t i = 0; i < model::kProjectionNames.size(); ++i) {
    lora.targets[i] = std::find(adapter.target_modules.begin(), adapter.target_modules.end(),
                                model::kProjectionNames[i]) != adapter.target_modules.end();
  }
  return lora;
}

Inputs check_inputs(const TrainOptions& options, std::vector<std::string>& problems) {
  Inputs inputs;
  const bool model_found = passes(problems, [&] {
    inputs.model_folder = data::resolve_hub_name(options.model_name, data::HubKind::model);
  });
  if (model_found) {
    const bool config_good = passes(problems, [&] {
      inputs.model = model::read_model_config(inputs.model_folder);
      if (options.load_in_4bit)
        model::quantise_to_four_bits(inputs.model, (inputs.model_folder / "config.json").string());
    });
    const bool tokenizer_good =
        passes(problems, [&] { inputs.tokenizer = data::Tokenizer::from_folder(inputs.model_folder); });
    if (config_good && tokenizer_good) {
      passes(problems, [&] { check_vocabulary(*inputs.tokenizer, inputs.model, inputs.model_folder); });
    }
    if (options.save_gguf && config_good && tokenizer_good)
      passes(problems, [&] { train::check_gguf(inputs.model, inputs.model_folder); });
    if (options.load_format != "dummy") {
      passes(problems, [&] {
        inputs.weights = std::make_unique<model::WeightFiles>(inputs.model_folder);
        if (!config_good) return;
        train::find_whole_modules(inputs.model, *inputs.weights);
        train::check_weights(inputs.model, *inputs.weights);
      });
    }
  }
  bool is_chat = false;
  const auto check_prompt = [&](data::RowFormat format) {
    const auto form = prompt_form_of(options, format, inputs.model_folder).form;
    is_chat = is_chat || form == data::PromptTemplate::chat;
  };
  const bool rows_good = passes(problems, [&] {
    if (options.dataset.empty()) return;
    inputs.records = options.raw_text_file
                         ? data::read_raw_text(*options.raw_text_file)
                         : read_dataset(options, options.dataset, options.dataset_limit.value_or(0));
    check_prompt(inputs.records.format);
  });
  if (options.eval_dataset) {
    passes(problems, [&] {
      inputs.eval_records = read_dataset(options, *options.eval_dataset, 0);
      check_prompt(inputs.eval_records.format);
    });
  }
  if (rows_good && !is_chat && (options.chat_template || options.chat_date)) {
    problems.push_back(
        fmt::format("--{} is for rows that a chat template writes, and there are none; leave it out, or give "
                    "--prompt_template chat",
                    options.chat_template ? "chat_template" : "chat_date"));
  }
  inputs.adapter = adapter_of_options(options);
  if (options.init_adapter) {
    passes(problems, [&] {
      inputs.init_adapter = data::resolve_hub_name(*options.init_adapter, data::HubKind::model);
      inputs.adapter = exporting::read_adapter_config(*inputs.init_adapter);
      inputs.adapter.base_model_name_or_path = options.model_name;
      refuse_contradictions(options, inputs.adapter);
    });
  }
  inputs.lora = lora_config(inputs.adapter);
  return inputs;
}

std::int64_t pack_length_of(const TrainOptions& options) {
  return options.packing ? options.max_seq_length : 0;
}

train::Recompute recompute_of(const TrainOptions& options) {
  const std::string& mode = options.use_gradient_checkpointing;
  if (mode == "true") return train::Recompute::always;
  return mode == "false" ? train::Recompute::never : train::Recompute::automatic;
}

std::int64_t memory_limit_of(const TrainOptions& options) {
  return static_cast<std::int64_t>(options.memory_limit.value_or(0) * (1 << 30));
}

}  // namespace ranktune::app
