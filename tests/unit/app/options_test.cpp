#include "app/options.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

namespace ranktune::app {
namespace {

using Arguments = std::vector<std::string>;

TrainOptions parsed(const Arguments& arguments) {
  const ParseResult result = parse_train_options(arguments);
  EXPECT_TRUE(result.problems.empty()) << result.problems.front();
  return result.options;
}

// The one problem of a command line.
std::string problem(const Arguments& arguments) {
  const ParseResult result = parse_train_options(arguments);
  EXPECT_EQ(result.problems.size(), 1U) << (arguments.empty() ? "" : arguments.front());
  return result.problems.empty() ? "" : result.problems.front();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A config file that lives as long as the test.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("ranktune_options_" + std::to_string(getpid()) + ".conf")) {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(TrainOptions, DefaultsAreThoseOfUnslothsCommandLine) {
  const TrainOptions options = parsed({});
  EXPECT_EQ(options.model_name, "unsloth/llama-3-8b");
  EXPECT_EQ(options.dataset, "yahma/alpaca-cleaned");
  EXPECT_EQ(options.max_seq_length, 2048);
  EXPECT_EQ(options.r, 16);
  EXPECT_EQ(options.lora_alpha, 16);
  EXPECT_EQ(options.random_state, 3407);
  EXPECT_EQ(options.per_device_train_batch_size, 2);
  EXPECT_EQ(options.gradient_accumulation_steps, 4);
  EXPECT_EQ(options.warmup_steps, 5);
  EXPECT_EQ(options.max_steps, 400);
  EXPECT_DOUBLE_EQ(options.learning_rate, 2e-4);
  EXPECT_DOUBLE_EQ(options.weight_decay, 0.01);
  EXPECT_EQ(options.seed, 3407);
  EXPECT_EQ(options.save_method, "merged_16bit");
  EXPECT_EQ(options.output_dir, "outputs");
  EXPECT_EQ(options.save_path, "model");
  EXPECT_TRUE(options.explicit_flags.empty());
}

TEST(TrainOptions, TheGuidesCommandIsValid) {
  const TrainOptions options =
      parsed({"--model_name=Qwen/Qwen3-8B", "--dataset=yahma/alpaca-cleaned", "--learning_rate=2e-5",
              "--max_seq_length=2048", "--per_device_train_batch_size=1", "--gradient_accumulation_steps=4",
              "--max_steps=1000", "--save_model"});
  EXPECT_EQ(options.model_name, "Qwen/Qwen3-8B");
  EXPECT_DOUBLE_EQ(options.learning_rate, 2e-5);
  EXPECT_EQ(options.per_device_train_batch_size, 1);
  EXPECT_EQ(options.max_steps, 1000);
  EXPECT_TRUE(options.save_model);
  EXPECT_TRUE(options.is_explicit("save_model"));
  EXPECT_FALSE(options.is_explicit("seed"));
}

TEST(TrainOptions, SpellingsOfFlags) {
  EXPECT_EQ(parsed({"--max-seq-length", "512"}).max_seq_length, 512);
  EXPECT_EQ(parsed({"--max-seq-length=512"}).max_seq_length, 512);
  EXPECT_EQ(parsed({"--output_dir=my-run"}).output_dir, "my-run") << "dashes of a value stay";
  EXPECT_EQ(parsed({"--output_dir=a=b"}).output_dir, "a=b");
  EXPECT_TRUE(parsed({"--save_model", "true"}).save_model);
  EXPECT_FALSE(parsed({"--save_model=False"}).save_model);
  EXPECT_TRUE(parsed({"--save_model", "--use_rslora"}).use_rslora);
  EXPECT_FALSE(parsed({"--no-shuffle"}).shuffle);
  EXPECT_FALSE(parsed({"--shuffle", "false"}).shuffle);
  EXPECT_TRUE(parsed({"--no_shuffle", "false"}).shuffle);
  EXPECT_TRUE(parsed({"--no_shuffle"}).is_explicit("shuffle"));
  EXPECT_EQ(parsed({"--r", "8", "--r", "32"}).r, 32) << "the last use counts";
  EXPECT_TRUE(parse_train_options({"--help"}).help);
  EXPECT_TRUE(parse_train_options({"-h"}).help);
  EXPECT_TRUE(parse_train_options({"--version"}).version);
}

TEST(TrainOptions, NoneMeansNoValue) {
  EXPECT_EQ(parsed({"--dtype", "None"}).dtype, "auto");
  EXPECT_FALSE(parsed({"--loftq_config", "None"}).loftq_config);
  EXPECT_FALSE(parsed({"--save_total_limit", "none"}).save_total_limit);
  EXPECT_FALSE(parsed({"--max_tokens_per_pass", "auto"}).max_tokens_per_pass);
  EXPECT_EQ(parsed({"--max_tokens_per_pass", "4096"}).max_tokens_per_pass, 4096);
  EXPECT_FALSE(parsed({"--init_adapter", "none"}).init_adapter);
}

TEST(TrainOptions, TargetModulesAreASetInAFixedOrder) {
  const Arguments two = {"q_proj", "v_proj"};
  EXPECT_EQ(parsed({"--target_modules", "v_proj,q_proj"}).target_modules, two);
  EXPECT_EQ(parsed({"--target_modules", "v_proj", "q_proj", "q_proj"}).target_modules, two);
  EXPECT_EQ(parsed({"--target_modules", "v_proj q_proj", "--r", "8"}).target_modules, two);
  EXPECT_EQ(parsed({"--target_modules", "all-linear"}).target_modules.size(), 7U);
  EXPECT_TRUE(has(problem({"--target_modules", "q_proj,lm_head"}), "'lm_head'"));
  EXPECT_TRUE(has(problem({"--target_modules", "all-linear,q_proj"}), "'all-linear'"));
  EXPECT_TRUE(has(problem({"--target_modules", ","}), "needs a value"));
}

TEST(TrainOptions, WrongValuesAreRefusedWithWhatIsAllowed) {
  struct Case {
    Arguments arguments;
    std::string sentence;
  };
  const std::vector<Case> cases = {
      {{"--learning_rate", "-1"}, "--learning_rate must be a number >= 0 and < 1000, not '-1'"},
      {{"--learning_rate", "inf"}, "--learning_rate must be a number >= 0 and < 1000, not 'inf'"},
      {{"--learning_rate", "1000"}, "--learning_rate must be a number >= 0 and < 1000, not '1000'"},
      {{"--gradient_accumulation_steps", "0"},
       "--gradient_accumulation_steps must be a whole number from 1 to 65536, not '0'"},
      {{"--max_steps", "ten"}, "--max_steps must be a whole number from -1 to 1000000000, not 'ten'"},
      {{"--r", "0"}, "--r must be a whole number from 1 to 4096, not '0'"},
      {{"--r", "16.5"}, "--r must be a whole number from 1 to 4096, not '16.5'"},
      {{"--lora_dropout", "1"}, "--lora_dropout must be a number >= 0 and < 1, not '1'"},
      {{"--num_train_epochs", "0"},
       "--num_train_epochs must be none or a number > 0 and <= 1000000, not '0'"},
      {{"--device", "tpu"}, "--device must be auto, cuda or cpu, not 'tpu'"},
      {{"--max_time", "soon"}, "--max_time must be seconds or [D-]HH:MM:SS, not 'soon'"},
      {{"--save_model", "yes"}, "--save_model must be true or false, not 'yes'"},
      {{"--save_model=1"}, "--save_model must be true or false, not '1'"},
      {{"--no-shuffle", "perhaps"}, "--no_shuffle must be true or false, not 'perhaps'"},
      {{"--r"}, "--r needs a value: a whole number from 1 to 4096"},
      {{"--output_dir"}, "--output_dir needs a value, as in --output_dir DIR"},
      {{"--output_dir="}, "--output_dir has no value after the '='"},
      {{"--resume", "-r"}, "--resume must be a name or a path that does not start with a dash, not '-r'"},
      {{"stray"}, "unexpected argument 'stray': values follow a flag, as in --model_name FOLDER"},
      {{"--=3"}, "unexpected argument '--=3'"},
  };
  for (const Case& wrong : cases) EXPECT_EQ(problem(wrong.arguments), wrong.sentence);
}

TEST(TrainOptions, TypingErrorsSuggestTheNearestFlag) {
  EXPECT_EQ(problem({"--lerning_rate", "1e-4"}),
            "unknown option '--lerning_rate'; did you mean '--learning_rate'?");
  EXPECT_EQ(problem({"--lerning-rate=1e-4"}),
            "unknown option '--lerning_rate'; did you mean '--learning_rate'?");
  EXPECT_EQ(problem({"--max_seq", "512"}), "unknown option '--max_seq'; did you mean '--max_seq_length'?");
  EXPECT_EQ(
      problem({"-learning_rate", "1e-4"}),
      "unexpected argument '-learning_rate': flags start with two dashes; did you mean '--learning_rate'?");
  EXPECT_EQ(problem({"--zzzzzzzz"}), "unknown option '--zzzzzzzz'");
}

TEST(TrainOptions, AllProblemsComeTogether) {
  const ParseResult result = parse_train_options({"--lerning_rate", "1e-4", "--r", "0", "--seed", "x",
                                                  "--load_in_8bit", "--output_dir", "--max_steps=-3"});
  EXPECT_EQ(result.problems.size(), 6U);
}

TEST(TrainOptions, WhatCannotBeHonouredIsRefused) {
  const std::vector<Arguments> refused = {{"--load_in_8bit"},
                                          {"--load_in_16bit"},
                                          {"--full_finetuning", "True"},
                                          {"--use_dora"},
                                          {"--loftq_config", "{}"},
                                          {"--quantization", "q4_k_m", "--save_gguf"},
                                          {"--quantization", "q8_0", "q4_k_m", "--save_gguf"},
                                          {"--push_model"},
                                          {"--push_gguf"},
                                          {"--hub_path", "me/model"},
                                          {"--hub_token", "secret"},
                                          {"--report_to", "wandb"},
                                          {"--optim", "lion_8bit"},
                                          {"--dtype", "float16"},
                                          {"--bias", "all"},
                                          {"--save_method", "merged_4bit"}};
  for (const Arguments& arguments : refused) {
    const std::string sentence = problem(arguments);
    EXPECT_TRUE(has(sentence, arguments.front())) << sentence;
    EXPECT_TRUE(has(sentence, "is not available in this version: ")) << sentence;
  }
}

TEST(TrainOptions, TypesOfGgufFiles) {
  using Types = std::vector<std::string>;
  EXPECT_EQ(parsed({"--save_gguf"}).quantization, Types{"q8_0"});
  EXPECT_EQ(parsed({"--save_gguf", "--quantization", "q8_0", "f16"}).quantization, (Types{"f16", "q8_0"}));
  EXPECT_EQ(parsed({"--save_gguf", "--quantization=bf16,f32"}).quantization, (Types{"f32", "bf16"}));
  EXPECT_TRUE(has(problem({"--quantization", "f16"}), "give --save_gguf too"));
  EXPECT_TRUE(has(problem({"--save_gguf", "--quantization", "none"}), "--save_gguf needs a type"));
  EXPECT_TRUE(has(problem({"--save_gguf", "--quantization", "all-linear"}), "is not available"));
  EXPECT_TRUE(has(problem({"--save_gguf", "--load_format", "dummy"}), "--save_gguf has nothing to merge"));
}

TEST(TrainOptions, WhatAsksForNothingIsNotRefused) {
  parsed({"--load_in_4bit", "false",          "--load_in_8bit=False",
          "--packing",      "false",          "--save_gguf",
          "false",          "--push_model",   "false",
          "--report_to",    "none",           "--optim",
          "adamw_torch",    "--bias",         "none",
          "--loftq_config", "None",           "--raw_text_file",
          "None",           "--quantization", "none",
          "--hub_token",    "None",           "--dtype",
          "bfloat16"});
}

TEST(TrainOptions, ATokenIsNeverRepeated) {
  EXPECT_FALSE(has(problem({"--hub_token", "hf_secret"}), "hf_secret"));
  TrainOptions options;
  options.hub_token = "hf_secret";
  EXPECT_FALSE(has(to_json(options).dump(), "hf_secret"));
}

TEST(TrainOptions, EvaluationNeedsSomethingToEvaluate) {
  EXPECT_FALSE(parsed({}).evaluates());
  EXPECT_TRUE(parsed({"--eval_split", "0.1", "--eval_steps", "5"}).evaluates());
  EXPECT_EQ(
      parsed({"--eval_dataset", "a.json", "--per_device_eval_batch_size", "2"}).per_device_eval_batch_size,
      2);
  EXPECT_EQ(parsed({"--eval_split", "20"}).eval_split, 20.0);
  EXPECT_TRUE(has(problem({"--eval_steps", "5"}), "--eval_steps has nothing to evaluate"));
  EXPECT_TRUE(
      has(problem({"--per_device_eval_batch_size", "4"}), "--per_device_eval_batch_size has nothing"));
  EXPECT_TRUE(has(problem({"--eval_split", "0.1", "--eval_dataset", "a.json"}), "give one of them"));
  EXPECT_TRUE(has(problem({"--eval_split", "2.5"}), "not '2.5'"));
  EXPECT_TRUE(has(problem({"--eval_split", "0"}), "--eval_split must be"));
}

TEST(TrainOptions, WarmupRatioReplacesTheDefaultSteps) {
  const TrainOptions ratio = parsed({"--warmup_ratio", "0.1"});
  EXPECT_EQ(ratio.warmup_steps, 0);
  EXPECT_EQ(warmup_steps_of(ratio, 400), 40);
  EXPECT_EQ(warmup_steps_of(ratio, 401), 41) << "rounded up";
  EXPECT_EQ(warmup_steps_of(parsed({}), 400), 5);
  EXPECT_TRUE(has(problem({"--warmup_ratio", "0.1", "--warmup_steps", "5"}), "--warmup_ratio"));
}

TEST(TrainOptions, StepsAndEpochs) {
  EXPECT_EQ(parsed({"--num_train_epochs", "2"}).max_steps, -1) << "the default 400 is off";
  EXPECT_EQ(parsed({"--num_train_epochs", "2", "--max_steps", "7"}).max_steps, 7);
  EXPECT_EQ(parsed({"--num_train_epochs", "0.5", "--max_steps", "-1"}).num_train_epochs, 0.5);
  EXPECT_TRUE(has(problem({"--max_steps", "-1"}), "--num_train_epochs"));
  EXPECT_TRUE(has(problem({"--max_steps", "0"}), "not '0'"));
}

TEST(TrainOptions, TheCpuHasNoBfloat16) {
  EXPECT_TRUE(has(problem({"--device", "cpu", "--dtype", "bfloat16"}), "float32"));
  EXPECT_EQ(parsed({"--device", "cpu"}).dtype, "auto");
}

TEST(ConfigFile, CommandLineWins) {
  const ConfigFile file(
      "# a run\n"
      "model_name = Qwen/Qwen3-8B   # the model\n"
      "learning-rate = 1e-3\n"
      "\n"
      "no-shuffle = true\r\n"
      "save_path = \"my # model\"  # quoted\n"
      "target_modules = q_proj, v_proj\n"
      "save_model = true\n");
  const TrainOptions options =
      parsed({"--learning_rate", "5e-4", "--config", file.path(), "--save_model=false"});
  EXPECT_EQ(options.model_name, "Qwen/Qwen3-8B");
  EXPECT_DOUBLE_EQ(options.learning_rate, 5e-4);
  EXPECT_FALSE(options.shuffle);
  EXPECT_EQ(options.save_path, "my # model");
  EXPECT_EQ(options.target_modules, (Arguments{"q_proj", "v_proj"}));
  EXPECT_FALSE(options.save_model);
  EXPECT_TRUE(options.is_explicit("model_name"));
  EXPECT_EQ(options.config, file.path());
  EXPECT_TRUE(parsed({"--config", file.path(), "--shuffle"}).shuffle);
}

TEST(ConfigFile, ProblemsNameTheLine) {
  const ConfigFile file(
      "r = 0\n"
      "lerning_rate = 1\n"
      "just words\n"
      "seed = 1\n"
      "seed = 2\n"
      "save_path = \"open\n"
      "config = other.conf\n"
      "load_in_8bit = true\n");
  const ParseResult result = parse_train_options({"--config", file.path()});
  const std::vector<std::string> wanted = {
      ":2: unknown option 'lerning_rate'; did you mean 'learning_rate'?",
      ":3: 'just words' is not of the form name = value",
      ":5: seed is set on line 4 already",
      ":6: 'save_path = \"open' is not of the form name = value",
      ":7: config cannot be set in a config file: name the file on the command line",
      ":1: r must be a whole number from 1 to 4096, not '0'",
      ":8: load_in_8bit is not available in this version: leave it out to keep the base weights in bfloat16"};
  ASSERT_EQ(result.problems.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(result.problems[i], file.path() + wanted[i]);
}

TEST(ConfigFile, AMissingFileIsOneProblemAmongOthers) {
  const ParseResult result = parse_train_options({"--config", "/nowhere/run.conf", "--r", "0"});
  ASSERT_EQ(result.problems.size(), 2U);
  EXPECT_TRUE(has(result.problems[0], "/nowhere/run.conf"));
}

// The flags of Unsloth's command line, and ours.
TEST(Help, NamesEveryFlag) {
  const std::string help = train_help();
  for (const char* name : {"model_name",
                           "max_seq_length",
                           "dtype",
                           "load_in_4bit",
                           "dataset",
                           "r",
                           "lora_alpha",
                           "lora_dropout",
                           "bias",
                           "use_gradient_checkpointing",
                           "random_state",
                           "use_rslora",
                           "loftq_config",
                           "use_dora",
                           "per_device_train_batch_size",
                           "per_device_eval_batch_size",
                           "gradient_accumulation_steps",
                           "warmup_steps",
                           "max_steps",
                           "learning_rate",
                           "optim",
                           "weight_decay",
                           "lr_scheduler_type",
                           "seed",
                           "packing",
                           "report_to",
                           "logging_steps",
                           "output_dir",
                           "save_model",
                           "save_method",
                           "save_gguf",
                           "save_path",
                           "quantization",
                           "push_model",
                           "push_gguf",
                           "hub_path",
                           "hub_token",
                           "raw_text_file",
                           "chunk_size",
                           "stride",
                           "target_modules",
                           "warmup_ratio",
                           "num_train_epochs",
                           "max_grad_norm",
                           "shuffle",
                           "eval_dataset",
                           "eval_split",
                           "eval_steps",
                           "save_steps",
                           "save_total_limit",
                           "resume",
                           "init_adapter",
                           "device",
                           "max_tokens_per_pass",
                           "load_format",
                           "prompt_template",
                           "chat_template",
                           "chat_date",
                           "dataset_format",
                           "dataset_limit",
                           "train_on_responses_only",
                           "allow_shared_gpu",
                           "max_time",
                           "show_sample",
                           "config",
                           "help",
                           "version"}) {
    EXPECT_TRUE(std::regex_search(help, std::regex("(^|\\n)  --" + std::string(name) + "( |\\n)"))) << name;
  }
  for (const char* text :
       {"Model Options:", "Data Options:", "LoRA Options:", "Training Options:", "Report Options:",
        "Save Model Options:", "Push Model Options:", "Run Options:", "mpirun -np 2 ranktune train",
        "adamw_8bit", "tensorboard", "[2e-4]", "[3407]", "[merged_16bit]"}) {
    EXPECT_TRUE(has(help, text)) << text;
  }
}

TEST(Help, FitsTheWidth) {
  for (const unsigned width : {80U, 100U, 140U}) {
    std::istringstream lines(train_help(width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width) << line;
  }
}

TEST(Json, HoldsEveryOption) {
  const nlohmann::json json =
      to_json(parsed({"--r", "8", "--max_time", "01:00:00", "--target_modules", "q_proj"}));
  EXPECT_EQ(json.at("r"), 8);
  EXPECT_EQ(json.at("max_time"), 3600);
  EXPECT_EQ(json.at("learning_rate"), 2e-4);
  EXPECT_EQ(json.at("shuffle"), true);
  EXPECT_EQ(json.at("target_modules"), nlohmann::json::array({"q_proj"}));
  EXPECT_TRUE(json.at("warmup_ratio").is_null());
  EXPECT_EQ(json.size(), 68U) << "a new option? count it here";
}

TEST(RawText, TakesThePlaceOfRows) {
  EXPECT_EQ(parsed({"--raw_text_file", "a.txt"}).dataset, "a.txt");
  EXPECT_EQ(parsed({"--raw_text_file", "a.txt", "--chunk_size", "100", "--stride", "0"}).chunk_size, 100);
  EXPECT_TRUE(has(problem({"--chunk_size", "100"}), "--chunk_size is about chunks of --raw_text_file"));
  EXPECT_TRUE(has(problem({"--raw_text_file", "a.txt", "--stride", "2048"}), "--stride 2048 leaves"));
  EXPECT_TRUE(
      has(problem({"--raw_text_file", "a.txt", "--max_seq_length", "1024"}), "--chunk_size 2048 is more"));
  for (const Arguments& rows :
       {Arguments{"--dataset", "b.json"}, {"--dataset_limit", "3"}, {"--dataset_format", "text"}}) {
    EXPECT_TRUE(has(problem({"--raw_text_file", "a.txt", rows[0], rows[1]}), rows[0] + " is about rows"));
  }
  EXPECT_EQ(parse_eval_options({"--eval_dataset", "a.json", "--raw_text_file", "a.txt"}).problems.size(), 1U);
}

TEST(ChatDate, IsADay) {
  EXPECT_EQ(parsed({"--chat_date", "2024-02-29"}).chat_date, "2024-02-29");
  for (const char* wrong :
       {"2023-02-29", "today", "24-07-26", "2024-7-26", "2024-13-01", "2024-00-10", "2024-07-+1"}) {
    const auto problems = parse_train_options({"--chat_date", wrong}).problems;
    ASSERT_EQ(problems.size(), 1U) << wrong;
    EXPECT_TRUE(has(problems.front(), std::string("not '") + wrong + "'")) << problems.front();
  }
}

TEST(EvalOptions, AreThoseOfModelAndData) {
  const auto problems = [](const Arguments& arguments) { return parse_eval_options(arguments).problems; };
  EXPECT_TRUE(
      problems({"--eval_dataset", "a.json", "--prompt_template", "alpaca", "--device", "cpu"}).empty());
  EXPECT_TRUE(problems({"--dataset", "a.json", "--eval_split", "0.1", "--seed", "3"}).empty());
  EXPECT_EQ(parse_eval_options({"--eval_dataset", "a.json"}).options.dataset, "");
  EXPECT_EQ(problems({}).size(), 1U);
  for (const char* flag : {"--max_steps", "--output_dir", "--r"}) {
    const auto found = problems({"--eval_dataset", "a.json", flag, "8"});
    ASSERT_EQ(found.size(), 1U) << flag;
    EXPECT_TRUE(has(found.front(), std::string(flag) + " means nothing to ranktune eval")) << found.front();
  }
  EXPECT_TRUE(has(eval_help(), "--eval_dataset"));
  EXPECT_FALSE(has(eval_help(), "--learning_rate"));
}

TEST(Subcommands, AreFoundOrSuggested) {
  EXPECT_EQ(parse_command_line({}).subcommand, "help");
  EXPECT_EQ(parse_command_line({"--version"}).subcommand, "version");
  EXPECT_EQ(parse_command_line({"-h"}).subcommand, "help");
  const CommandLine train = parse_command_line({"train", "--r", "8"});
  EXPECT_EQ(train.subcommand, "train");
  EXPECT_EQ(train.arguments, (Arguments{"--r", "8"}));
  const CommandLine help = parse_command_line({"help", "train"});
  EXPECT_EQ(help.subcommand, "train");
  EXPECT_EQ(help.arguments, (Arguments{"--help"}));

  const auto only_problem = [](const Arguments& arguments) {
    const CommandLine line = parse_command_line(arguments);
    return line.problems.size() == 1 ? line.problems.front() : std::string();
  };
  EXPECT_EQ(only_problem({"trian"}), "unknown command 'trian'; did you mean 'train'?");
  EXPECT_EQ(only_problem({"zzzz"}), "unknown command 'zzzz'; ranktune help lists them");
  EXPECT_TRUE(has(only_problem({"--r=8"}), "ranktune train --r=8"));
  EXPECT_TRUE(has(program_help(), "train"));
}

}  // namespace
}  // namespace ranktune::app
