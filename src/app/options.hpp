// What `ranktune train` was asked for. Parsing never prints and never exits: every problem of a command line
// and its config file comes back as a sentence of its own, so that all of them can be reported together.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune::app {

// Every option of `ranktune train`, under the name of its flag, with its default. After a parse without
// problems the values are within the limits that --help states, and options that this version cannot honour
// have their inactive value.
struct TrainOptions {
  // Model Options
  std::string model_name = "unsloth/llama-3-8b";  // folder or Hub name
  std::int64_t max_seq_length = 2048;             // tokens
  std::string dtype = "auto";                     // auto, bfloat16, float32
  bool load_in_4bit = false;
  bool load_in_8bit = false;
  bool load_in_16bit = false;
  bool full_finetuning = false;
  std::string load_format = "auto";  // auto, dummy (seeded random weights from config.json alone)

  // Data Options
  std::string dataset =
      "yahma/alpaca-cleaned";           // files, folders, Hub names, commas between; raw_text_file if given
  std::string dataset_format = "auto";  // auto, or a data::RowFormat by its name
  std::optional<std::int64_t> dataset_limit;  // rows; none: all
  std::string prompt_template = "auto";       // auto, unsloth, alpaca, chat, or a file
  std::optional<std::string> chat_template;   // file; none: the model's own
  std::optional<std::string> chat_date;       // YYYY-MM-DD
  bool train_on_responses_only = false;
  std::optional<std::string> eval_dataset;  // as dataset
  std::optional<double> eval_split;         // held out of dataset: a fraction below 1, or a number of samples
  bool shuffle = true;
  std::optional<std::string> raw_text_file;  // plain text, in the place of rows
  std::int64_t chunk_size = 2048;            // tokens of raw_text_file in a sample
  std::int64_t stride = 512;                 // of them in the next one too

  // LoRA Options
  std::int64_t r = 16;
  std::int64_t lora_alpha = 16;
  double lora_dropout = 0.0;
  std::string bias = "none";
  // A subset of the seven projections, in this order, each once.
  std::vector<std::string> target_modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                             "gate_proj", "up_proj", "down_proj"};
  std::string use_gradient_checkpointing = "auto";  // auto, true, false, unsloth
  std::int64_t random_state = 3407;
  bool use_rslora = false;
  std::optional<std::string> loftq_config;
  bool use_dora = false;
  std::optional<std::string> init_adapter;  // folder of a PEFT adapter to start from

  // Training Options
  std::int64_t per_device_train_batch_size = 2;
  std::int64_t per_device_eval_batch_size = 4;
  std::int64_t eval_steps = 0;  // 0: only at the end
  std::int64_t gradient_accumulation_steps = 4;
  std::int64_t warmup_steps = 5;       // 0 where warmup_ratio has a value
  std::optional<double> warmup_ratio;  // of all steps; decides where it has a value
  std::int64_t max_steps = 400;        // -1: num_train_epochs, which then has a value, decides
  std::optional<double> num_train_epochs;
  double learning_rate = 2e-4;
  // adamw, adamw_torch, adamw_torch_fused, adamw_32bit: the same optimizer; adamw_8bit
  std::string optim = "adamw";
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;                // 0: no clipping
  std::string lr_scheduler_type = "linear";  // linear, cosine, constant, constant_with_warmup
  std::int64_t seed = 3407;
  bool packing = false;
  std::optional<std::int64_t> max_tokens_per_pass;  // none: chosen from the free memory
  std::optional<double> memory_limit;               // GiB a rank may hold; none: all that is free

  // Report Options
  std::string report_to = "none";
  std::int64_t logging_steps = 1;

  // Save Model Options
  std::string output_dir = "outputs";
  std::int64_t save_steps = 0;  // 0: only at the end
  std::optional<std::int64_t> save_total_limit;
  bool save_model = false;
  std::string save_method = "merged_16bit";  // merged_16bit, lora
  std::string save_path = "model";
  bool save_gguf = false;
  std::vector<std::string> quantization = {"q8_0"};  // of f32, f16, bf16, q8_0; with save_gguf

  // Push Model Options
  bool push_model = false;
  bool push_gguf = false;
  std::optional<std::string> hub_path;
  std::optional<std::string> hub_token;

  // Run Options
  std::string device = "auto";              // auto, cuda, cpu
  std::string resume = "never";             // never, auto, or the path of a checkpoint
  std::optional<std::int64_t> max_time;     // seconds
  std::optional<std::int64_t> show_sample;  // show so many, and do not train
  bool allow_shared_gpu = false;
  std::optional<std::string> config;

  // Names of the flags given on the command line or in the config file.
  std::set<std::string> explicit_flags;

  bool is_explicit(const std::string& flag) const { return explicit_flags.contains(flag); }
  bool exports() const { return save_model || save_gguf; }  // writes save_path
  bool evaluates() const { return eval_dataset || eval_split; }
};

struct ParseResult {
  TrainOptions options;
  std::vector<std::string> problems;  // empty: the options hold
  bool help = false;                  // asked for; the rest does not matter then
  bool version = false;
};

// `arguments`: what follows `ranktune train`. Reads the --config file, if one is named.
ParseResult parse_train_options(const std::vector<std::string>& arguments);

// The text of `ranktune train --help`, wrapped to `width` columns (80 at least), without the last newline.
std::string train_help(unsigned width = 100);

// The same for `ranktune eval`, which takes some of the flags of `ranktune train`: those of model and data,
// and what evaluation needs besides. A --dataset that is not read comes back empty.
ParseResult parse_eval_options(const std::vector<std::string>& arguments);
std::string eval_help(unsigned width = 100);

// All options with their values, by flag name, for provenance. Never holds hub_token.
nlohmann::json to_json(const TrainOptions& options);

// Warm-up steps of a run of `total_steps`: warmup_steps, or warmup_ratio of the total, rounded up.
std::int64_t warmup_steps_of(const TrainOptions& options, std::int64_t total_steps);

struct Subcommand {
  std::string_view name;
  std::string_view summary;
};
std::span<const Subcommand> subcommands();

// The first look at `arguments`, those after the program's name.
struct CommandLine {
  std::string subcommand = "help";     // one of subcommands(), where there is no problem
  std::vector<std::string> arguments;  // what follows it
  std::vector<std::string> problems;
};
CommandLine parse_command_line(const std::vector<std::string>& arguments);

// The text of `ranktune help` and of `ranktune version`, without the last newline.
std::string program_help();
std::string version_text();

}  // namespace ranktune::app
