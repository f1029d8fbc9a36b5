// Every flag of `ranktune train`. Names, types and defaults are those of Unsloth's command line wherever it
// has the flag; --help states the exceptions.
#include "app/flags.hpp"

namespace ranktune::app {
namespace {

using Options = TrainOptions;

// Above any sensible request, below what would overflow a product of counts.
constexpr double kMostSteps = 1e9;
constexpr double kMostSamples = 65536;
constexpr double kMostTokens = 16'777'216;
constexpr double kMostSeed = 4294967295.0;

std::vector<Flag> model_flags() {
  constexpr auto group = FlagGroup::model;
  return {
      {.name = "model_name",
       .group = group,
       .member = &Options::model_name,
       .value_name = "NAME|DIR",
       .help = "Model to fine-tune: a Hugging Face folder, or a Hub name that is in the local Hugging Face "
               "cache."},
      {.name = "max_seq_length",
       .group = group,
       .member = &Options::max_seq_length,
       .value_name = "N",
       .help = "Longest sequence in tokens; longer texts are cut.",
       .limits = {2, kMostTokens}},
      {.name = "dtype",
       .group = group,
       .member = &Options::dtype,
       .value_name = "TYPE",
       .help = "Type of the computation: bfloat16 or float32. auto (or None) is bfloat16 on GPUs, float32 on "
               "CPUs.",
       .choices = {"auto", "none", "bfloat16", "float32"},
       .refusal = "give bfloat16 or float32, or leave it out"},
      {.name = "load_in_4bit",
       .group = group,
       .member = &Options::load_in_4bit,
       .help = "Hold the base weights in 4 bits (NF4 with double quantisation): QLoRA."},
      {.name = "load_in_8bit",
       .group = group,
       .member = &Options::load_in_8bit,
       .help = "Quantise the base weights to 8 bits (not in this version).",
       .refusal = "leave it out to keep the base weights in bfloat16"},
      {.name = "load_in_16bit",
       .group = group,
       .member = &Options::load_in_16bit,
       .help = "Not in this version; --dtype bfloat16 keeps the base weights in 16 bits.",
       .refusal = "give --dtype bfloat16, which keeps the base weights in 16 bits"},
      {.name = "full_finetuning",
       .group = group,
       .member = &Options::full_finetuning,
       .help = "Train all weights (not in this version).",
       .refusal = "leave it out to train a LoRA adapter"},
      {.name = "load_format",
       .group = group,
       .member = &Options::load_format,
       .value_name = "FORMAT",
       .help = "dummy: seeded random weights from config.json alone, for trying and timing.",
       .choices = {"auto", "dummy"}},
  };
}

std::vector<Flag> data_flags() {
  constexpr auto group = FlagGroup::data;
  return {
      {.name = "dataset",
       .group = group,
       .member = &Options::dataset,
       .value_name = "NAME|PATH",
       .help = "The rows: JSON or JSONL files (plain, .gz or .zst), folders of them, or Hub names in the "
               "local Hugging Face cache; several with commas between."},
      {.name = "dataset_format",
       .group = group,
       .member = &Options::dataset_format,
       .value_name = "FORMAT",
       .help = "Columns of the rows: alpaca (instruction, input, output), prompt_completion, text, messages "
               "(role, content) or conversations (from, value). auto tells by the first row.",
       .choices = {"auto", "alpaca", "prompt_completion", "text", "messages", "conversations"}},
      {.name = "dataset_limit",
       .group = group,
       .member = &Options::dataset_limit,
       .value_name = "N",
       .help = "Use the first N rows of --dataset only; none uses all.",
       .limits = {1, kMostSteps}},
      {.name = "prompt_template",
       .group = group,
       .member = &Options::prompt_template,
       .value_name = "FORM|FILE",
       .help = "Text made of an alpaca row: unsloth (as its command line writes it), alpaca (Stanford's "
               "original), chat (a user's and an assistant's turn by the chat template), or a file with "
               "{instruction}, {input} and {output}. auto is unsloth, for messages and conversations chat, "
               "and for "
               "other formats the text as it is."},
      {.name = "chat_template",
       .group = group,
       .member = &Options::chat_template,
       .value_name = "FILE",
       .help = "A chat template (Jinja2) in the place of the model's own. Python with Jinja2 renders it."},
      {.name = "chat_date",
       .group = group,
       .member = &Options::chat_date,
       .value_name = "YYYY-MM-DD",
       .help = "The date for chat templates that write one; without it they are refused."},
      {.name = "train_on_responses_only",
       .group = group,
       .member = &Options::train_on_responses_only,
       .help = "Only the answers and their end of text are targets; by default every token is."},
      {.name = "eval_dataset",
       .group = group,
       .member = &Options::eval_dataset,
       .value_name = "NAME|PATH",
       .help = "Rows whose loss is measured during training and at its end, in the forms of --dataset."},
      {.name = "eval_split",
       .group = group,
       .member = &Options::eval_split,
       .value_name = "F|N",
       .help = "Hold samples out of --dataset and measure their loss: a fraction below 1, or a number of "
               "samples. Which ones depends on --seed alone.",
       .limits = {0, 1e12, true, false}},
      {.name = "shuffle",
       .group = group,
       .member = &Options::shuffle,
       .help = "Draw the rows in a new random order each epoch; --no-shuffle keeps the order of the file."},
      {.name = "raw_text_file",
       .group = group,
       .member = &Options::raw_text_file,
       .value_name = "FILE",
       .help = "Train on a file of plain text in the place of --dataset, in chunks that overlap."},
      {.name = "chunk_size",
       .group = group,
       .member = &Options::chunk_size,
       .value_name = "N",
       .help = "Tokens in a chunk of --raw_text_file, at most --max_seq_length.",
       .limits = {1, kMostTokens}},
      {.name = "stride",
       .group = group,
       .member = &Options::stride,
       .value_name = "N",
       .help = "Tokens that a chunk of --raw_text_file has in common with the next one.",
       .limits = {0, kMostTokens}},
  };
}

std::vector<Flag> lora_flags() {
  constexpr auto group = FlagGroup::lora;
  return {
      {.name = "r",
       .group = group,
       .member = &Options::r,
       .value_name = "N",
       .help = "Rank of the adapter.",
       .limits = {1, 4096}},
      {.name = "lora_alpha",
       .group = group,
       .member = &Options::lora_alpha,
       .value_name = "N",
       .help = "Scale of the adapter: it is multiplied by lora_alpha / r.",
       .limits = {1, 1e6}},
      {.name = "lora_dropout",
       .group = group,
       .member = &Options::lora_dropout,
       .value_name = "P",
       .help = "Dropout on the adapter's input, below 1; 0 is the fastest.",
       .limits = {0, 1, false, true}},
      {.name = "bias",
       .group = group,
       .member = &Options::bias,
       .value_name = "WHICH",
       .help = "Biases to train: none.",
       .choices = {"none"},
       .refusal = "give none, or leave it out"},
      {.name = "target_modules",
       .group = group,
       .member = &Options::target_modules,
       .value_name = "NAMES",
       .help = "Projections to adapt, with commas or blanks between: all-linear, or any of q_proj k_proj "
               "v_proj o_proj "
               "gate_proj up_proj down_proj.",
       .default_text = "all-linear",
       .choices = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
      {.name = "use_gradient_checkpointing",
       .group = group,
       .member = &Options::use_gradient_checkpointing,
       .value_name = "MODE",
       .help = "true recomputes each block in the backward pass, false nothing; auto and unsloth let "
               "ranktune choose.",
       .choices = {"auto", "true", "false", "unsloth"}},
      {.name = "random_state",
       .group = group,
       .member = &Options::random_state,
       .value_name = "N",
       .help = "Seed of the adapter's first weights.",
       .limits = {0, kMostSeed}},
      {.name = "use_rslora",
       .group = group,
       .member = &Options::use_rslora,
       .help = "Rank-stabilised LoRA: scale by lora_alpha / sqrt(r)."},
      {.name = "loftq_config",
       .group = group,
       .member = &Options::loftq_config,
       .value_name = "CONFIG",
       .help = "LoftQ initialisation (not in this version).",
       .refusal = "leave it out"},
      {.name = "use_dora",
       .group = group,
       .member = &Options::use_dora,
       .help = "Weight-decomposed LoRA (not in this version).",
       .refusal = "leave it out to train a plain LoRA adapter"},
      {.name = "init_adapter",
       .group = group,
       .member = &Options::init_adapter,
       .value_name = "DIR",
       .help = "Start from this PEFT adapter, with its r, lora_alpha, target_modules, use_rslora and "
               "lora_dropout."},
  };
}

std::vector<Flag> training_flags() {
  constexpr auto group = FlagGroup::training;
  return {
      {.name = "per_device_train_batch_size",
       .group = group,
       .member = &Options::per_device_train_batch_size,
       .value_name = "N",
       .help = "Samples in a micro-batch of a rank.",
       .limits = {1, kMostSamples}},
      {.name = "per_device_eval_batch_size",
       .group = group,
       .member = &Options::per_device_eval_batch_size,
       .value_name = "N",
       .help = "Samples in an evaluation batch of a rank.",
       .limits = {1, kMostSamples}},
      {.name = "eval_steps",
       .group = group,
       .member = &Options::eval_steps,
       .value_name = "N",
       .help = "Evaluate every N steps, and at the end; 0: at the end only.",
       .limits = {0, kMostSteps}},
      {.name = "gradient_accumulation_steps",
       .group = group,
       .member = &Options::gradient_accumulation_steps,
       .value_name = "N",
       .help = "Micro-batches of a rank in one step.",
       .limits = {1, kMostSamples}},
      {.name = "warmup_steps",
       .group = group,
       .member = &Options::warmup_steps,
       .value_name = "N",
       .help = "Steps over which the learning rate rises.",
       .limits = {0, kMostSteps}},
      {.name = "warmup_ratio",
       .group = group,
       .member = &Options::warmup_ratio,
       .value_name = "F",
       .help = "The same as a fraction of all steps, in place of --warmup_steps.",
       .limits = {0, 1}},
      {.name = "max_steps",
       .group = group,
       .member = &Options::max_steps,
       .value_name = "N",
       .help = "Steps to train; goes before --num_train_epochs. -1: as many as --num_train_epochs asks for.",
       .limits = {-1, kMostSteps}},
      {.name = "num_train_epochs",
       .group = group,
       .member = &Options::num_train_epochs,
       .value_name = "F",
       .help = "Passes over the dataset; given without --max_steps it turns that flag's default off.",
       .limits = {0, 1e6, true, false}},
      {.name = "learning_rate",
       .group = group,
       .member = &Options::learning_rate,
       .value_name = "LR",
       .help = "Learning rate after the warm-up.",
       .default_text = "2e-4",
       .limits = {0, 1000, false, true}},
      {.name = "optim",
       .group = group,
       .member = &Options::optim,
       .value_name = "NAME",
       .help = "adamw, with fp32 moments (betas 0.9 and 0.999, eps 1e-8); adamw_torch, adamw_torch_fused and "
               "adamw_32bit are the same. adamw_8bit keeps the moments in 8 bits.",
       .choices = {"adamw", "adamw_torch", "adamw_torch_fused", "adamw_32bit", "adamw_8bit"},
       .refusal = "give adamw, which has fp32 moments, or adamw_8bit"},
      {.name = "weight_decay",
       .group = group,
       .member = &Options::weight_decay,
       .value_name = "F",
       .help = "Decoupled weight decay of all trained tensors.",
       .limits = {0, 100}},
      {.name = "max_grad_norm",
       .group = group,
       .member = &Options::max_grad_norm,
       .value_name = "F",
       .help = "Clip the gradient to this norm; 0 never clips.",
       .limits = {0, 1e6}},
      {.name = "lr_scheduler_type",
       .group = group,
       .member = &Options::lr_scheduler_type,
       .value_name = "NAME",
       .help = "linear, cosine, constant or constant_with_warmup.",
       .choices = {"linear", "cosine", "constant", "constant_with_warmup"}},
      {.name = "seed",
       .group = group,
       .member = &Options::seed,
       .value_name = "N",
       .help = "Seed of the order of the samples and of dropout.",
       .limits = {0, kMostSeed}},
      {.name = "packing",
       .group = group,
       .member = &Options::packing,
       .help =
           "Fill sequences of max_seq_length tokens with several whole samples, none of which sees another; "
           "batch sizes then count sequences."},
      {.name = "max_tokens_per_pass",
       .group = group,
       .member = &Options::max_tokens_per_pass,
       .value_name = "N",
       .help = "Most tokens of a rank in one forward and backward pass; a step is split where it has more. "
               "auto goes by "
               "the free memory.",
       .default_text = "auto",
       .limits = {1, kMostTokens},
       .nothing = "auto"},
      {.name = "memory_limit",
       .group = group,
       .member = &Options::memory_limit,
       .value_name = "GIB",
       .help = "Most memory that a rank may hold on its device, in GiB; what is kept and what is recomputed "
               "is planned to "
               "fit. auto is all that is free.",
       .default_text = "auto",
       .limits = {0, 1e6, true, false},
       .nothing = "auto"},
  };
}

std::vector<Flag> report_flags() {
  constexpr auto group = FlagGroup::report;
  return {
      {.name = "report_to",
       .group = group,
       .member = &Options::report_to,
       .value_name = "NAME",
       .help = "Services to report to: none. Every step is in metrics.h5 of --output_dir.",
       .choices = {"none"},
       .refusal = "leave it out or give none, every step's metrics are in metrics.h5 of --output_dir"},
      {.name = "logging_steps",
       .group = group,
       .member = &Options::logging_steps,
       .value_name = "N",
       .help = "Print every Nth step, where the output is no terminal.",
       .limits = {1, kMostSteps}},
  };
}

std::vector<Flag> save_flags() {
  constexpr auto group = FlagGroup::save;
  return {
      {.name = "output_dir",
       .group = group,
       .member = &Options::output_dir,
       .value_name = "DIR",
       .help = "Folder of the run: metrics.h5, checkpoints, adapter."},
      {.name = "save_steps",
       .group = group,
       .member = &Options::save_steps,
       .value_name = "N",
       .help = "Write a checkpoint every N steps; 0: at the end only.",
       .limits = {0, kMostSteps}},
      {.name = "save_total_limit",
       .group = group,
       .member = &Options::save_total_limit,
       .value_name = "N",
       .help = "Keep the newest N checkpoints; none keeps all.",
       .limits = {1, kMostSteps}},
      {.name = "save_model",
       .group = group,
       .member = &Options::save_model,
       .help = "After training, write the model to --save_path by --save_method."},
      {.name = "save_method",
       .group = group,
       .member = &Options::save_method,
       .value_name = "METHOD",
       .help =
           "merged_16bit: the whole model, in the 16-bit type of its files or bfloat16; lora: the adapter "
           "alone.",
       .choices = {"merged_16bit", "lora"},
       .refusal = "give merged_16bit or lora"},
      {.name = "save_path",
       .group = group,
       .member = &Options::save_path,
       .value_name = "DIR",
       .help = "Folder for --save_model and --save_gguf, which must not exist yet."},
      {.name = "save_gguf",
       .group = group,
       .member = &Options::save_gguf,
       .help = "After training, write the merged model as GGUF files, for llama.cpp, to --save_path."},
      {.name = "quantization",
       .group = group,
       .member = &Options::quantization,
       .value_name = "NAMES",
       .help = "Types for --save_gguf, a file each, with commas or blanks between: f32, f16, bf16, q8_0.",
       .default_text = "q8_0",
       .choices = {"f32", "f16", "bf16", "q8_0"},
       .refusal = "give any of f32, f16, bf16 and q8_0"},
  };
}

std::vector<Flag> push_flags() {
  constexpr auto group = FlagGroup::push;
  constexpr std::string_view upload =
      "give --save_model, and upload the folder of --save_path with `hf upload`";
  return {
      {.name = "push_model",
       .group = group,
       .member = &Options::push_model,
       .help = "Upload the model to the Hub (not in this version).",
       .refusal = upload},
      {.name = "push_gguf",
       .group = group,
       .member = &Options::push_gguf,
       .help = "Upload a GGUF file to the Hub (not in this version).",
       .refusal = upload},
      {.name = "hub_path",
       .group = group,
       .member = &Options::hub_path,
       .value_name = "NAME",
       .help = "Hub name to upload to (not in this version).",
       .refusal = upload},
      {.name = "hub_token",
       .group = group,
       .member = &Options::hub_token,
       .value_name = "TOKEN",
       .help = "Token for the upload (not in this version).",
       .refusal = upload},
  };
}

std::vector<Flag> run_flags() {
  constexpr auto group = FlagGroup::run;
  return {
      {.name = "device",
       .group = group,
       .member = &Options::device,
       .value_name = "KIND",
       .help = "cuda, one GPU per rank, or cpu; auto is cuda unless no rank sees a GPU.",
       .choices = {"auto", "cuda", "cpu"}},
      {.name = "resume",
       .group = group,
       .member = &Options::resume,
       .value_name = "never|auto|DIR",
       .help = "never: a new run, refused where --output_dir holds one; auto: go on from its newest valid "
               "checkpoint, or "
               "start; DIR: go on from that checkpoint."},
      {.name = "max_time",
       .group = group,
       .member = &Options::max_time,
       .value_name = "TIME",
       .help = "Checkpoint and end with code 85 after this time: seconds or [D-]HH:MM:SS.",
       .limits = {1, 1e9},
       .is_duration = true},
      {.name = "show_sample",
       .group = group,
       .member = &Options::show_sample,
       .value_name = "N",
       .help = "Print the first N samples as training would see them, text and tokens with the targets "
               "marked, and "
               "end without training.",
       .limits = {1, kMostSamples}},
      {.name = "allow_shared_gpu",
       .group = group,
       .member = &Options::allow_shared_gpu,
       .help = "Let several ranks use one GPU, for tests of correctness only."},
      {.name = "config",
       .group = group,
       .member = &Options::config,
       .value_name = "FILE",
       .help = "Read flags from lines `name = value`; # starts a comment. The command line goes before it."},
  };
}

}  // namespace

std::span<const Flag> train_flags() {
  static const std::vector<Flag> flags = [] {
    std::vector<Flag> all;
    for (const auto& part : {model_flags(), data_flags(), lora_flags(), training_flags(), report_flags(),
                             save_flags(), push_flags(), run_flags()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return flags;
}

}  // namespace ranktune::app
