#include "app/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/flags.hpp"
#include "app/flags_text.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "base/version.hpp"

namespace ranktune::app {
namespace {

void append(std::vector<std::string>& problems, std::vector<std::string> more) {
  problems.insert(problems.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// The path of the config file, if the command line names one: the last one, as with every flag.
std::optional<std::string> config_path(const Occurrences& command_line) {
  std::optional<std::string> path;
  for (const Occurrence& flag : command_line.flags) {
    if (flag.name == "config" && !flag.values.empty() && !means_none(flag.values.front()))
      path = flag.values.front();
  }
  return path;
}

Occurrences read_config(const std::string& path) {
  Occurrences result;
  try {
    result = parse_config_text(read_file(path), path);
  } catch (const UserError& error) {
    for (const std::string& sentence : error.sentences()) result.problems.push_back("--config: " + sentence);
    return result;
  }
  const auto nested = std::find_if(result.flags.begin(), result.flags.end(),
                                   [](const Occurrence& flag) { return flag.name == "config"; });
  if (nested != result.flags.end()) {
    result.problems.push_back(nested->spelling +
                              " cannot be set in a config file: name the file on the command line");
    result.flags.erase(nested);
  }
  return result;
}

// Every flag once, the last use of it; the config file's where the command line has none.
std::vector<Occurrence> effective(std::vector<Occurrence> config,
                                  const std::vector<Occurrence>& command_line) {
  std::vector<Occurrence> result = std::move(config);
  for (const Occurrence& flag : command_line) {
    const auto earlier = std::find_if(result.begin(), result.end(),
                                      [&](const Occurrence& other) { return other.name == flag.name; });
    if (earlier == result.end()) {
      result.push_back(flag);
    } else {
      *earlier = flag;
    }
  }
  return result;
}

// How samples to evaluate are named, and that there are some where flags are about them.
void settle_evaluation(const TrainOptions& options, std::vector<std::string>& problems) {
  if (options.eval_dataset && options.eval_split) {
    problems.push_back(
        "--eval_dataset and --eval_split each say what to evaluate: give one of them, a dataset of its own "
        "or a part of --dataset");
  }
  if (options.eval_split && *options.eval_split >= 1 &&
      *options.eval_split != std::floor(*options.eval_split)) {
    problems.push_back(
        fmt::format("--eval_split must be a fraction below 1 or a whole number of samples, not '{}'",
                    *options.eval_split));
  }
  if (options.evaluates()) return;
  const char* useless = options.eval_steps > 0                              ? "eval_steps"
                        : options.is_explicit("per_device_eval_batch_size") ? "per_device_eval_batch_size"
                                                                            : nullptr;
  if (useless != nullptr) {
    problems.push_back(fmt::format(
        "--{} has nothing to evaluate: give --eval_dataset or --eval_split too, or leave it out", useless));
  }
}

// Merged weights are made from the files of the base model.
void settle_export(const TrainOptions& options, std::vector<std::string>& problems) {
  if (options.save_gguf && options.quantization.empty()) {
    problems.emplace_back(
        "--save_gguf needs a type to write: give --quantization any of f32, f16, bf16, q8_0");
  }
  if (options.is_explicit("quantization") && !options.quantization.empty() && !options.save_gguf) {
    problems.emplace_back("--quantization is about GGUF files: give --save_gguf too, or leave it out");
  }
  if (options.load_format != "dummy") return;
  if (options.save_model && options.save_method != "lora") {
    problems.push_back(fmt::format(
        "--save_method {} has nothing to merge with --load_format dummy: give --save_method lora, or leave "
        "--save_model out",
        options.save_method));
  }
  if (options.save_gguf) {
    problems.emplace_back("--save_gguf has nothing to merge with --load_format dummy: leave it out");
  }
}

// Plain text in the place of rows, or rows.
void settle_raw_text(TrainOptions& options, std::vector<std::string>& problems) {
  if (!options.raw_text_file) {
    for (const char* flag : {"chunk_size", "stride"}) {
      if (!options.is_explicit(flag)) continue;
      problems.push_back(
          fmt::format("--{} is about chunks of --raw_text_file: give that too, or leave it out", flag));
    }
    return;
  }
  for (const char* flag : {"dataset", "dataset_format", "dataset_limit"}) {
    if (!options.is_explicit(flag)) continue;
    problems.push_back(fmt::format(
        "--{} is about rows, and --raw_text_file is trained on in their place: give one of them", flag));
  }
  options.dataset = *options.raw_text_file;
  if (options.stride >= options.chunk_size) {
    problems.push_back(
        fmt::format("--stride {} leaves a chunk nothing new: it must be less than --chunk_size, {}",
                    options.stride, options.chunk_size));
  }
  if (options.chunk_size > options.max_seq_length) {
    problems.push_back(
        fmt::format("--chunk_size {} is more than --max_seq_length, {}: make one of them fit the other",
                    options.chunk_size, options.max_seq_length));
  }
}

// YYYY-MM-DD, of a day that exists.
bool is_date(std::string_view text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  const auto year = parse_integer(text.substr(0, 4));
  const auto month = parse_integer(text.substr(5, 2));
  const auto day = parse_integer(text.substr(8));
  if (!year || !month || !day || *year < 1 || *month < 1 || *day < 1) return false;
  return std::chrono::year_month_day(std::chrono::year(static_cast<int>(*year)),
                                     std::chrono::month(static_cast<unsigned>(*month)),
                                     std::chrono::day(static_cast<unsigned>(*day)))
      .ok();
}

// What one flag says about another.
void settle(TrainOptions& options, std::vector<std::string>& problems) {
  if (options.dtype == "none") options.dtype = "auto";
  if (options.chat_date && !is_date(*options.chat_date)) {
    problems.push_back(
        fmt::format("--chat_date must be a day as in 2024-07-26, not '{}'", *options.chat_date));
  }
  settle_raw_text(options, problems);
  settle_evaluation(options, problems);
  settle_export(options, problems);
  if (options.device == "cpu" && options.dtype == "bfloat16") {
    problems.push_back("--dtype bfloat16 needs a GPU: with --device cpu leave --dtype out or give float32");
  }

  const bool both_warmups = options.is_explicit("warmup_steps") && options.warmup_ratio;
  if (both_warmups)
    problems.push_back("--warmup_steps and --warmup_ratio say the same thing twice: give one of them");
  if (options.warmup_ratio && !both_warmups) options.warmup_steps = 0;

  if (options.num_train_epochs && !options.is_explicit("max_steps")) options.max_steps = -1;
  if (options.max_steps == 0) {
    problems.push_back(
        "--max_steps must be a whole number from 1 to 1000000000, or -1 with --num_train_epochs, not '0'");
  }
  if (options.max_steps == -1 && !options.num_train_epochs) {
    problems.push_back("--max_steps -1 leaves the length of the run open: give --num_train_epochs too");
  }
}

struct ToJson {
  const TrainOptions& options;
  template <typename Value>
  nlohmann::json operator()(Value TrainOptions::*member) const {
    return options.*member;
  }
  template <typename Value>
  nlohmann::json operator()(std::optional<Value> TrainOptions::*member) const {
    return options.*member ? nlohmann::json(*(options.*member)) : nlohmann::json();
  }
};

constexpr Subcommand kSubcommands[] = {
    {"train", "fine-tune a model, one process per GPU"},
    {"eval", "measure the loss of a model, with or without an adapter, on a dataset"},
    {"generate", "answer a prompt with a model, with or without an adapter"},
    {"export", "write the merged model of a run or an adapter, or the adapter"},
    {"bench", "time what training would do, on this machine"},
    {"report", "summarise what runs have recorded, without MPI"},
    {"help", "print this text, or that of a command: ranktune help train"},
    {"version", "print the version and those of the libraries"},
};

constexpr std::string_view kHelpHead = R"(Usage: mpirun -np RANKS ranktune train [FLAGS]
       srun --mpi=pmix ranktune train [FLAGS]

Fine-tunes a language model with LoRA, data-parallel, one rank per GPU (or on
CPUs).

Example, on two GPUs:
  mpirun -np 2 ranktune train --model_name Qwen/Qwen3-8B \
    --dataset yahma/alpaca-cleaned --learning_rate 2e-5 --max_seq_length 2048 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 4 \
    --max_steps 1000 --save_model

Flags are written --name value or --name=value, with underscores or dashes in
the name; the last use of a flag counts. A switch takes no value, or true or
false; --no_NAME turns it off. A flag that this version cannot honour is
refused, never ignored. Defaults stand in brackets. They are those of Unsloth's
command line, with three exceptions:
  optim                       adamw with fp32 moments (Unsloth: adamw_8bit)
  report_to                   none (Unsloth: tensorboard)
  use_gradient_checkpointing  auto (Unsloth: unsloth)
)";

constexpr std::string_view kEvalHelpHead =
    R"(Usage: mpirun -np RANKS ranktune eval --eval_dataset DATA [FLAGS]

Measures the loss of a model on a dataset, over all ranks, without training.
It is the number that a training run with the same flags writes to /eval.

Example:
  mpirun -np 2 ranktune eval --model_name Qwen/Qwen3-8B \
    --init_adapter outputs/adapter --eval_dataset held_out.json

In place of --eval_dataset, --dataset, --eval_split and --seed name what a
training run with these flags held out. Flags are written as for ranktune
train. Defaults stand in brackets.
)";

bool is_eval_flag(const Flag& flag) {
  if (flag.name == "shuffle") return false;
  constexpr std::string_view kOthers[] = {
      "init_adapter", "per_device_eval_batch_size", "seed",  "memory_limit",
      "device",       "allow_shared_gpu",           "config"};
  return flag.group == FlagGroup::model || flag.group == FlagGroup::data ||
         std::find(std::begin(kOthers), std::end(kOthers), flag.name) != std::end(kOthers);
}

}  // namespace

ParseResult parse_eval_options(const std::vector<std::string>& arguments) {
  ParseResult result = parse_train_options(arguments);
  TrainOptions& options = result.options;
  for (const Flag& flag : train_flags()) {
    if (options.is_explicit(std::string(flag.name)) && !is_eval_flag(flag)) {
      result.problems.push_back(
          fmt::format("--{} means nothing to ranktune eval, which does not train: leave it out", flag.name));
    }
  }
  if (!options.evaluates() && !options.is_explicit("per_device_eval_batch_size")) {
    result.problems.emplace_back(
        "ranktune eval needs something to evaluate: give --eval_dataset, or --dataset with --eval_split");
  }
  if (options.eval_dataset && (options.is_explicit("dataset") || options.raw_text_file)) {
    result.problems.push_back(
        fmt::format("--{} is not read where --eval_dataset says what to evaluate: leave one of them out",
                    options.raw_text_file ? "raw_text_file" : "dataset"));
  }
  if (options.eval_dataset || !options.eval_split) options.dataset.clear();
  return result;
}

std::string eval_help(unsigned width) {
  return fmt::format("{}{}", kEvalHelpHead, flags_help(std::max(80U, width), is_eval_flag));
}

ParseResult parse_train_options(const std::vector<std::string>& arguments) {
  ParseResult result;
  Occurrences command_line = read_command_line(arguments);
  const auto asked = [&](std::string_view name) {
    const auto is_it = [&](const Occurrence& flag) { return flag.name == name; };
    const auto found = std::find_if(command_line.flags.begin(), command_line.flags.end(), is_it);
    if (found == command_line.flags.end()) return false;
    std::erase_if(command_line.flags, is_it);
    return true;
  };
  result.help = asked("help");
  result.version = asked("version");
  result.problems = std::move(command_line.problems);

  Occurrences config;
  if (const auto path = config_path(command_line)) config = read_config(*path);
  append(result.problems, std::move(config.problems));

  for (const Occurrence& occurrence : effective(std::move(config.flags), command_line.flags)) {
    const Flag* flag = find_flag(occurrence.name);
    RT_CHECK(flag != nullptr, "a flag that was read is in the table");
    result.options.explicit_flags.insert(occurrence.name);
    if (auto problem = apply(*flag, occurrence, result.options))
      result.problems.push_back(std::move(*problem));
  }
  settle(result.options, result.problems);
  return result;
}

std::string train_help(unsigned width) {
  return fmt::format("{}{}", kHelpHead, flags_help(std::max(80U, width), [](const Flag&) { return true; }));
}

nlohmann::json to_json(const TrainOptions& options) {
  nlohmann::json result = nlohmann::json::object();
  for (const Flag& flag : train_flags()) {
    if (flag.name != "hub_token") result[std::string(flag.name)] = std::visit(ToJson{options}, flag.member);
  }
  return result;
}

std::int64_t warmup_steps_of(const TrainOptions& options, std::int64_t total_steps) {
  if (!options.warmup_ratio) return options.warmup_steps;
  return static_cast<std::int64_t>(std::ceil(*options.warmup_ratio * static_cast<double>(total_steps)));
}

std::span<const Subcommand> subcommands() {
  return kSubcommands;
}

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CommandLine result;
  if (arguments.empty()) return result;
  std::string name = arguments.front();
  if (name == "--help" || name == "-h") name = "help";
  if (name == "--version") name = "version";

  std::vector<std::string_view> names;
  for (const Subcommand& subcommand : kSubcommands) names.push_back(subcommand.name);
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    result.subcommand = name;
    result.arguments.assign(arguments.begin() + 1, arguments.end());
    // `help train` is `train --help`.
    const auto topic = result.subcommand == "help" && arguments.size() > 1
                           ? std::find(names.begin(), names.end(), arguments[1])
                           : names.end();
    if (topic != names.end() && *topic != "help") {
      result.subcommand = *topic;
      result.arguments = {"--help"};
    }
  } else if (name.starts_with("-")) {
    result.problems.push_back(
        fmt::format("'{}' stands where a command is expected, as in ranktune train {} ...", name, name));
  } else {
    const std::string_view near = nearest(name, names);
    result.problems.push_back(near.empty()
                                  ? fmt::format("unknown command '{}'; ranktune help lists them", name)
                                  : fmt::format("unknown command '{}'; did you mean '{}'?", name, near));
  }
  return result;
}

std::string program_help() {
  std::string text =
      "Usage: ranktune COMMAND [FLAGS]\n\nFine-tunes large language models as an MPI program.\n\nCommands:\n";
  for (const Subcommand& subcommand : kSubcommands) {
    text += fmt::format("  {:<9} {}\n", subcommand.name, subcommand.summary);
  }
  return text +
         "\nExample: mpirun -np 2 ranktune train --model_name Qwen/Qwen3-8B --dataset yahma/alpaca-cleaned";
}

std::string version_text() {
  return fmt::format("ranktune {} ({})", kVersion, kGitRevision);
}

}  // namespace ranktune::app
