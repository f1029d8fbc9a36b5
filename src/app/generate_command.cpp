#include "app/generate_command.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/flags.hpp"
#include "app/flags_text.hpp"
#include "app/inputs.hpp"
#include "app/phases.hpp"
#include "base/child_process.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "data/chat.hpp"

namespace ranktune::app {
namespace {

namespace po = boost::program_options;

constexpr double kTokenDeadline = 600;  // seconds without a token

po::options_description description() {
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  po::options_description own("Generate Options", 100);
  own.add_options()("prompt", text("TEXT"), "instruction to answer")("input", text("TEXT"),
                                                                     "input that belongs to the instruction")(
      "prompt_file", text("FILE"), "file with an instruction on each line, in place of --prompt")(
      "raw", po::bool_switch(), "write the prompt on as it is, without the prompt template of training")(
      "adapter", text("DIR"), "PEFT adapter to answer with")("max_new_tokens", text("N"),
                                                             "most tokens of an answer [256]")(
      "temperature", text("F"), "0: the likeliest token each time; above, tokens are drawn [0]")(
      "top_k", text("N"), "draw from so many of the likeliest tokens; 0: all [0]")(
      "top_p", text("F"), "draw from the fewest tokens that hold this part of the probability [1]");
  return own;
}

bool is_generate_flag(const Flag& flag) {
  constexpr std::string_view kNames[] = {
      "model_name", "dtype", "load_in_4bit", "load_format",      "prompt_template", "chat_template",
      "chat_date",  "seed",  "device",       "allow_shared_gpu", "config"};
  return std::find(std::begin(kNames), std::end(kNames), flag.name) != std::end(kNames);
}

// Reads the values of the flags above.
class Reader {
 public:
  Reader(const po::variables_map& values, std::vector<std::string>& problems)
      : values_(values), problems_(problems) {}

  std::optional<std::string> text(const char* name) const {
    return values_.contains(name) ? std::optional(values_[name].as<std::string>()) : std::nullopt;
  }
  void count(const char* name, std::int64_t least, std::int64_t most, std::int64_t& value) {
    const auto given = text(name);
    if (!given) return;
    const auto number = parse_integer(*given);
    if (number && *number >= least && *number <= most) {
      value = *number;
    } else {
      problems_.push_back(
          fmt::format("--{} must be a whole number from {} to {}, not '{}'", name, least, most, *given));
    }
  }
  void number(const char* name, double least, bool least_excluded, double most, double& value) {
    const auto given = text(name);
    if (!given) return;
    const auto found = parse_number(*given);
    if (found && (least_excluded ? *found > least : *found >= least) && *found <= most) {
      value = *found;
    } else {
      problems_.push_back(fmt::format("--{} must be a number {} {} and at most {}, not '{}'", name,
                                      least_excluded ? "above" : "of at least", least, most, *given));
    }
  }

 private:
  const po::variables_map& values_;
  std::vector<std::string>& problems_;
};

void read_values(const po::variables_map& values, GenerateCommand& command) {
  Reader reader(values, command.problems);
  command.prompt = reader.text("prompt");
  command.prompt_file = reader.text("prompt_file");
  command.input = reader.text("input").value_or("");
  command.raw = values["raw"].as<bool>();
  command.options.init_adapter = reader.text("adapter");
  reader.count("max_new_tokens", 1, 16'777'216, command.max_new_tokens);
  reader.count("top_k", 0, 16'777'216, command.sampling.top_k);
  reader.number("temperature", 0, false, 1000, command.sampling.temperature);
  reader.number("top_p", 0, true, 1, command.sampling.top_p);
  command.sampling.seed = static_cast<std::uint64_t>(command.options.seed);
}

void settle(const GenerateCommand& command, std::vector<std::string>& problems) {
  if (command.prompt.has_value() == command.prompt_file.has_value()) {
    problems.emplace_back(command.prompt
                              ? "--prompt and --prompt_file each say what to answer: give one of them"
                              : "ranktune generate needs something to answer: give --prompt or "
                                "--prompt_file");
  }
  if (command.raw && (!command.input.empty() || command.options.is_explicit("prompt_template"))) {
    problems.push_back(fmt::format("--{} has no place in a prompt that is --raw: leave one of them out",
                                   command.input.empty() ? "prompt_template" : "input"));
  }
  if (command.sampling.temperature == 0 && (command.sampling.top_k > 0 || command.sampling.top_p < 1)) {
    problems.emplace_back("--top_k and --top_p are about drawing: give a --temperature above 0 too");
  }
  for (const Flag& flag : train_flags()) {
    if (command.options.is_explicit(std::string(flag.name)) && !is_generate_flag(flag)) {
      problems.push_back(fmt::format(
          "--{} means nothing to ranktune generate, which does not train: leave it out", flag.name));
    }
  }
}

std::vector<std::string> prompts_of(const GenerateCommand& command) {
  if (command.prompt) return {*command.prompt};
  std::istringstream lines(read_file(*command.prompt_file));
  std::vector<std::string> prompts;
  for (std::string line; std::getline(lines, line);) {
    if (!trimmed(line).empty()) prompts.emplace_back(trimmed(line));
  }
  if (prompts.empty()) {
    throw UserError(fmt::format("--prompt_file {} has no line with a prompt", *command.prompt_file));
  }
  return prompts;
}

// The conversation up to where the template has the answer start.
std::string chat_prompt(const data::ChatTemplate& chat, const data::Row& row) {
  data::ChatRendering how;
  how.python = python_program();
  how.spans = true;
  const auto rendered = data::parse_rendered(data::render_chats({&row, 1}, chat, how), 0, 1).front();
  RT_CHECK(!rendered.responses.empty(), "a turn of the assistant is a response");
  return rendered.text.substr(0, rendered.responses.front().begin);
}

std::vector<std::int32_t> ids_of(const GenerateCommand& command, const Inputs& inputs,
                                 const std::string& prompt) {
  const data::Tokenizer& tokenizer = *inputs.tokenizer;
  const data::PromptForm form =
      command.raw ? data::PromptForm(data::PromptTemplate::plain)
                  : prompt_form_of(command.options, data::RowFormat::alpaca, inputs.model_folder);
  data::Row row;
  row.instruction = prompt;
  row.input = command.input;
  // A chat template writes the special tokens itself.
  if (form.form == data::PromptTemplate::chat) return tokenizer.encode(chat_prompt(form.chat, row), false);
  const auto own = tokenizer.encode(data::render_prompt(form, row), false);
  // What the tokenizer puts before a text is there in training too; what it puts behind one comes later.
  auto ids = tokenizer.encode("");
  ids.resize(tokenizer.added_before());
  ids.insert(ids.end(), own.begin(), own.end());
  if (ids.empty()) throw UserError("the prompt has no tokens; give one that is not empty");
  return ids;
}

void add_ids(const nlohmann::json& config, std::set<std::int32_t>& ids) {
  const auto found = config.find("eos_token_id");
  if (found == config.end()) return;
  if (found->is_number_integer()) ids.insert(found->get<std::int32_t>());
  if (!found->is_array()) return;
  for (const auto& id : *found) {
    if (id.is_number_integer()) ids.insert(id.get<std::int32_t>());
  }
}

// The tokens that end a text: those of generation_config.json, else of config.json, and the tokenizer's, with
// which the texts of training end.
std::set<std::int32_t> stops_of(const Inputs& inputs) {
  std::set<std::int32_t> stops;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto path = inputs.model_folder / name;
    if (!stops.empty() || !std::filesystem::exists(path)) continue;
    const auto config = nlohmann::json::parse(read_file(path), nullptr, false);
    if (config.is_object()) add_ids(config, stops);
  }
  if (const auto eos = inputs.tokenizer->token_id(*inputs.tokenizer->eos_token())) stops.insert(*eos);
  return stops;
}

class GenerateRun {
 public:
  GenerateRun(const cluster::Session& session, const GenerateCommand& command)
      : command_(command),
        options_(command.options),
        signals_(0, steady_seconds()),
        watchdog_(session),
        display_(session, on_stderr()),
        phases_{session, options_, watchdog_, signals_, display_} {}
  int run();

 private:
  // What is not an answer goes to stderr.
  static ConsoleSettings on_stderr() {
    ConsoleSettings settings = ConsoleSettings::of_process();
    settings.out = settings.err;
    settings.terminal = false;
    settings.color = settings.error_color;
    return settings;
  }
  void check();
  void answer(model::Decoder& decoder, std::size_t index);

  const GenerateCommand& command_;
  TrainOptions options_;
  cluster::SignalWatcher signals_;
  cluster::Watchdog watchdog_;
  TrainDisplay display_;
  Phases phases_;
  Inputs inputs_;
  std::vector<std::string> prompts_;
  std::vector<std::vector<std::int32_t>> ids_;  // of each prompt
  std::set<std::int32_t> stops_;
};

void GenerateRun::check() {
  std::vector<std::string> problems = command_.problems;
  inputs_ = check_inputs(options_, problems);
  if (!problems.empty()) throw UserError(problems);
  if (!inputs_.init_adapter) inputs_.lora.targets.fill(false);  // the model as it is
  stops_ = stops_of(inputs_);
  prompts_ = prompts_of(command_);
  options_.max_seq_length = 0;
  for (const std::string& prompt : prompts_) {
    ids_.push_back(ids_of(command_, inputs_, prompt));
    const auto length = static_cast<std::int64_t>(ids_.back().size()) + command_.max_new_tokens;
    options_.max_seq_length = std::max(options_.max_seq_length, length);
  }
  if (options_.max_seq_length > inputs_.model.max_positions) {
    throw UserError(
        fmt::format("--max_new_tokens {} after a prompt of {} tokens goes beyond the {} positions that the "
                    "model has; use "
                    "a smaller one",
                    command_.max_new_tokens, options_.max_seq_length - command_.max_new_tokens,
                    inputs_.model.max_positions));
  }
}

void GenerateRun::answer(model::Decoder& decoder, std::size_t index) {
  const auto write = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  if (prompts_.size() > 1) write(fmt::format("{}>>> {}\n", index > 0 ? "\n" : "", prompts_[index]));
  train::Generation how;
  how.max_new_tokens = command_.max_new_tokens;
  how.stops = stops_;
  how.sampling = command_.sampling;
  how.first_draw = static_cast<std::uint32_t>(index);
  train::TextStream text(*inputs_.tokenizer, ids_[index]);
  train::generate(decoder, ids_[index], how, [&](std::int32_t id) {
    write(text.add(id));
    watchdog_.progress();
    return signals_.reason() == cluster::StopReason::none;
  });
  write(text.finish() + "\n");
}

int GenerateRun::run() {
  watchdog_.phase("checking the input", kLoadDeadline);
  phases_.session.together("checking the input", [&] { check(); });
  const Devices devices = start_devices(phases_, inputs_.model);
  auto decoder = load_model(phases_, inputs_, devices.choice, devices.dtype, *devices.communicator);
  if (inputs_.init_adapter) load_adapter(phases_, inputs_, *decoder);
  watchdog_.phase("generating", kTokenDeadline);
  for (std::size_t i = 0; i < prompts_.size() && signals_.reason() == cluster::StopReason::none; ++i) {
    answer(*decoder, i);
  }
  const cluster::StopReason reason = signals_.reason();
  signals_.ignore_from_now_on();
  decoder.reset();
  if (devices.choice.cuda) at::cuda::device_synchronize();
  devices.communicator->close();
  watchdog_.stop();
  return cluster::exit_code(reason);
}

}  // namespace

GenerateCommand parse_generate_options(const std::vector<std::string>& arguments) {
  GenerateCommand command;
  std::vector<std::string> others;
  po::variables_map values;
  try {
    const auto own = description();
    std::vector<std::string> spelled = arguments;  // --max-new-tokens as --max_new_tokens
    for (std::string& argument : spelled) {
      if (!argument.starts_with("--")) continue;
      const auto end = std::min(argument.find('='), argument.size());
      std::replace(argument.begin() + 2, argument.begin() + static_cast<std::ptrdiff_t>(end), '-', '_');
    }
    using namespace po::command_line_style;
    const auto parsed = po::command_line_parser(spelled)
                            .options(own)
                            .style(allow_long | long_allow_adjacent | long_allow_next)
                            .allow_unregistered()
                            .run();
    po::store(parsed, values);
    others = po::collect_unrecognized(parsed.options, po::include_positional);
  } catch (const po::error& error) {
    command.problems.push_back(
        fmt::format("ranktune generate: {}; ranktune help generate lists its flags", error.what()));
    return command;
  }
  ParseResult train = parse_train_options(others);
  command.help = train.help;
  command.options = std::move(train.options);
  command.options.dataset.clear();
  command.problems = std::move(train.problems);
  read_values(values, command);
  settle(command, command.problems);
  return command;
}

std::string generate_help() {
  std::ostringstream text;
  text << "Usage: ranktune generate --model_name MODEL [--adapter DIR] --prompt TEXT [FLAGS]\n\n"
          "Answers a prompt, put into the prompt template of training, and writes the answer as it comes. "
          "For\n"
          "looking at what was trained; one process.\n\n"
          "Example:\n  ranktune generate --model_name Qwen/Qwen3-8B --adapter outputs/adapter \\\n"
          "    --prompt \"Name three rivers.\"\n\n"
       << description() << "\n"
       << flags_help(100, is_generate_flag);
  return text.str();
}

int run_generate(const cluster::Session& session, const GenerateCommand& command) {
  const c10::InferenceMode no_autograd;
  session.together("counting the ranks", [&] {
    if (session.world_size() == 1) return;
    throw UserError(
        fmt::format("ranktune generate is one process, and {} were started: start it without mpirun",
                    session.world_size()));
  });
  return GenerateRun(session, command).run();
}

}  // namespace ranktune::app
