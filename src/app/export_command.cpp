#include "app/export_command.hpp"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "app/console.hpp"
#include "app/flags.hpp"
#include "app/flags_text.hpp"
#include "app/inputs.hpp"
#include "base/error.hpp"
#include "data/hub.hpp"
#include "export/adapter.hpp"
#include "model/config.hpp"
#include "store/checkpoint.hpp"
#include "train/gguf.hpp"
#include "train/output.hpp"

namespace ranktune::app {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

struct ExportFlags {
  po::options_description shown{"Flags", 100};
  po::options_description all;
  po::positional_options_description positions;
};

ExportFlags flags() {
  ExportFlags result;
  result.shown.add_options()("to", po::value<std::string>()->value_name("FORM"),
                             "merged_16bit: base model and adapter as one model, in the 16-bit type of the "
                             "base's files or bfloat16; lora: the adapter alone; gguf: the merged model for "
                             "llama.cpp")(
      "quantization", po::value<std::vector<std::string>>()->multitoken()->value_name("NAMES"),
      "types for --to gguf, a file each: f32, f16, bf16, q8_0 [q8_0]")(
      "save_path", po::value<std::string>()->value_name("DIR"), "folder to write, which must not exist yet")(
      "model_name", po::value<std::string>()->value_name("NAME|DIR"),
      "base model, in place of the one that adapter_config.json names")(
      "max_shard_size", po::value<std::string>()->value_name("SIZE"),
      "largest weight file, as in 5GB or 300MB [5GB]")("help,h", "print this text");
  result.all.add(result.shown);
  result.all.add_options()("source", po::value<std::vector<std::string>>());
  result.positions.add("source", -1);
  return result;
}

// The folder of the adapter that `source` names.
fs::path find_adapter(const std::string& source) {
  const fs::path folder = data::resolve_hub_name(source, data::HubKind::model);
  for (const fs::path& candidate : {folder, folder / "adapter"}) {
    if (fs::exists(candidate / "adapter_config.json")) return candidate;
  }
  const auto checkpoints =
      fs::is_directory(folder) ? store::list_checkpoints(folder) : std::vector<fs::path>();
  if (!checkpoints.empty()) {
    throw UserError(
        fmt::format("{} is a run that has not written its adapter yet; give one of its checkpoints, "
                    "as in {}",
                    source, checkpoints.front().string()));
  }
  throw UserError(
      fmt::format("{} holds no adapter_config.json; give an adapter's folder, or that of a run or a "
                  "checkpoint of ranktune train",
                  source));
}

fs::path find_base(const ExportCommand& command, const exporting::AdapterConfig& adapter) {
  if (command.model_name) return data::resolve_hub_name(*command.model_name, data::HubKind::model);
  if (adapter.base_model_name_or_path.empty())
    throw UserError("adapter_config.json names no base model; name it with --model_name");
  try {
    return data::resolve_hub_name(adapter.base_model_name_or_path, data::HubKind::model);
  } catch (const UserError& error) {
    throw UserError(
        fmt::format("the base model that the adapter names is not found: {}; or name its folder "
                    "with --model_name",
                    error.what()));
  }
}

void export_with_base(const ExportCommand& command, const exporting::Adapter& adapter) {
  const fs::path base = find_base(command, adapter.config);
  const model::ModelConfig config = model::read_model_config(base);
  if (command.to == "gguf") train::check_gguf(config, base);
  const model::WeightFiles files(base);
  std::optional<train::MergedWeights> merged;
  try {
    merged.emplace(config, lora_config(adapter.config), files, adapter);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{} is no adapter of {}: {}; name its base model with --model_name",
                                command.source, base.string(), error.what()));
  }
  train::ModelForms forms;
  forms.merged = command.to == "merged_16bit";
  if (command.to == "gguf") forms.gguf = command.quantization;
  forms.shard_bytes = command.shard_bytes;
  train::save_model(command.save_path, forms, adapter, &*merged, config, base);
}

}  // namespace

std::optional<std::uint64_t> parse_size(const std::string& text) {
  const std::size_t unit = text.find_last_of("0123456789") + 1;
  const auto number = parse_integer(text.substr(0, unit));
  const std::string name = lower(text.substr(unit));
  const std::uint64_t factor = name == "kb"   ? 1'000
                               : name == "mb" ? 1'000'000
                               : name == "gb" ? 1'000'000'000
                                              : 0;
  if (!number || *number < 1 || *number > 1'000'000 || factor == 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number) * factor;
}

ExportCommand parse_export_options(const std::vector<std::string>& arguments) {
  ExportCommand command;
  po::variables_map values;
  try {
    const ExportFlags known = flags();
    po::store(po::command_line_parser(arguments)
                  .options(known.all)
                  .positional(known.positions)
                  .style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing)
                  .run(),
              values);
  } catch (const po::error& error) {
    command.problems.push_back(
        fmt::format("ranktune export: {}; ranktune help export lists its flags", error.what()));
    return command;
  }
  command.help = values.contains("help");
  if (command.help) return command;
  const auto text = [&](const char* name) {
    return values.contains(name) ? values[name].as<std::string>() : std::string();
  };
  const auto sources = values.contains("source") ? values["source"].as<std::vector<std::string>>()
                                                 : std::vector<std::string>();
  if (sources.size() == 1) command.source = sources.front();
  if (sources.size() != 1) {
    command.problems.push_back(fmt::format(
        "ranktune export takes one run or adapter, and {} were named, as in ranktune export outputs --to "
        "merged_16bit --save_path model",
        sources.size()));
  }
  command.to = text("to");
  if (command.to != "merged_16bit" && command.to != "lora" && command.to != "gguf") {
    command.problems.push_back(fmt::format("--to must be merged_16bit, lora or gguf, not '{}'", command.to));
  }
  if (values.contains("quantization")) {
    // As training reads it.
    const Flag* flag = find_flag("quantization");
    TrainOptions options;
    const auto problem = apply(
        *flag, {"quantization", values["quantization"].as<std::vector<std::string>>(), "--quantization"},
        options);
    command.quantization = options.quantization;
    if (problem) command.problems.push_back(*problem);
    if (command.to != "gguf") {
      command.problems.emplace_back("--quantization is about GGUF files: give --to gguf, or leave it out");
    } else if (!problem && command.quantization.empty()) {
      command.problems.emplace_back("--quantization must be any of f32, f16, bf16, q8_0, not none");
    }
  }
  command.save_path = text("save_path");
  if (command.save_path.empty()) command.problems.emplace_back("--save_path has to name the folder to write");
  if (values.contains("model_name")) command.model_name = text("model_name");
  if (values.contains("max_shard_size")) {
    const auto size = parse_size(text("max_shard_size"));
    command.shard_bytes = size.value_or(command.shard_bytes);
    if (!size) {
      command.problems.push_back(
          fmt::format("--max_shard_size must be a whole number of KB, MB or GB, as in "
                      "5GB, not '{}'",
                      text("max_shard_size")));
    }
  }
  return command;
}

std::string export_help() {
  std::ostringstream text;
  text << "Usage: ranktune export RUN|CHECKPOINT|ADAPTER --to FORM --save_path DIR [FLAGS]\n\n"
          "Writes what ranktune train --save_model or --save_gguf writes, from the adapter of a run, of one "
          "of its "
          "checkpoints\n"
          "or of anything else that PEFT can load. Needs no MPI and no GPU.\n\n"
          "Example:\n  ranktune export outputs --to merged_16bit --save_path model\n\n"
       << flags().shown;
  return text.str();
}

int run_export(const ExportCommand& command) {
  const c10::InferenceMode no_autograd;
  std::vector<std::string> problems = command.problems;
  if (!command.save_path.empty() && fs::exists(command.save_path)) {
    problems.push_back(
        fmt::format("--save_path {} exists already; remove it or name another", command.save_path));
  }
  if (!problems.empty()) throw UserError(problems);
  const fs::path folder = find_adapter(command.source);
  exporting::Adapter adapter = exporting::read_adapter(folder);
  if (command.to != "lora") {
    export_with_base(command, adapter);
  } else {
    if (command.model_name) adapter.config.base_model_name_or_path = *command.model_name;
    train::save_adapter(command.save_path, adapter, folder);
  }
  Console().note(fmt::format("{} written", command.save_path));
  return 0;
}

}  // namespace ranktune::app
