#include "app/train_display.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace ranktune::app {
namespace {

// "2 on node1, 2 on node2", in the order of the ranks.
std::string ranks_by_host(const cluster::Session& session) {
  std::vector<std::pair<std::string, int>> counts;
  for (const std::string& host : session.hosts()) {
    const auto known =
        std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == host; });
    if (known == counts.end()) {
      counts.emplace_back(host, 1);
    } else {
      ++known->second;
    }
  }
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < counts.size() && i < 4; ++i) {
    parts.push_back(fmt::format("{} on {}", counts[i].second, counts[i].first));
  }
  if (counts.size() > parts.size()) parts.push_back(fmt::format("... {} nodes in all", counts.size()));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string dataset_line(const RunFacts& facts) {
  const data::TokenStore& store = *facts.store;
  std::string line = fmt::format("{}: {} samples ({}), {} tokens", facts.options->dataset, store.samples(),
                                 data::format_name(facts.inputs->records.format),
                                 human_count(static_cast<double>(store.tokens())));
  if (store.truncated > 0)
    line += fmt::format(", {} cut at {}", store.truncated, facts.options->max_seq_length);
  if (store.skipped > 0) line += fmt::format(", {} skipped (nothing to train on)", store.skipped);
  return line;
}

std::string evaluation_line(const RunFacts& facts) {
  const TrainOptions& options = *facts.options;
  const data::TokenStore& store = *facts.evaluation;
  return fmt::format("{}: {} samples, {} tokens, {}at the end",
                     options.eval_dataset ? *options.eval_dataset : "held out of the dataset",
                     store.samples(), human_count(static_cast<double>(store.tokens())),
                     options.eval_steps > 0 ? fmt::format("every {} steps and ", options.eval_steps) : "");
}

std::string packing_line(const RunFacts& facts) {
  const auto packs = static_cast<double>(facts.packs);
  const std::int64_t length = facts.options->max_seq_length;
  return fmt::format(
      "{} packs of at most {} tokens in the first epoch, {:.1f} samples each, {:.1f} % full", facts.packs,
      length, static_cast<double>(facts.store->samples()) / packs,
      100 * static_cast<double>(facts.store->tokens()) / (packs * static_cast<double>(length)));
}

}  // namespace

TrainDisplay::TrainDisplay(const cluster::Session& session)
    : session_(session),
      console_(session.is_root() ? ConsoleSettings::of_process() : ConsoleSettings::silent()) {}

void TrainDisplay::begin(const std::string& phase, const std::string& unit) {
  phase_ = phase;
  unit_ = unit;
}

void TrainDisplay::progress(std::uint64_t done, std::uint64_t total) {
  const std::lock_guard lock(mutex_);
  console_.phase(phase_, done, total, unit_);
}

void TrainDisplay::end(const std::string& remark) {
  const std::lock_guard lock(mutex_);
  console_.end_phase();
  if (!remark.empty()) console_.note(phase_ + ": " + remark);
}

void TrainDisplay::banner(const RunFacts& facts) {
  const TrainOptions& options = *facts.options;
  const model::LoraConfig& lora = facts.inputs->lora;
  logging_steps_ = std::max<std::int64_t>(1, options.logging_steps);
  cuda_ = facts.device->cuda;
  const auto base = static_cast<double>(facts.inputs->model.parameters());
  const auto trainable = static_cast<double>(facts.trainable);
  std::vector<std::pair<std::string, std::string>> rows;
  rows.emplace_back("model", fmt::format("{} ({}, {} parameters, {}{}{})", options.model_name,
                                         facts.inputs->model.architecture, human_count(base), facts.dtype,
                                         facts.inputs->model.four_bit ? ", projections in 4 bits (NF4)" : "",
                                         options.load_format == "dummy" ? ", random weights" : ""));
  rows.emplace_back(
      "LoRA", fmt::format("r {}, alpha {:g}, {}: {} trainable parameters ({:.2f} %)", lora.r, lora.alpha,
                          facts.inputs->adapter.target_modules.size() == 7
                              ? "all projections"
                              : fmt::format("{}", fmt::join(facts.inputs->adapter.target_modules, " ")),
                          human_count(trainable), 100.0 * trainable / base));
  rows.emplace_back("ranks", fmt::format("{} ({}), {}", session_.world_size(), ranks_by_host(session_),
                                         facts.communicator));
  rows.emplace_back("device", facts.device->cuda
                                  ? fmt::format("{}, driver {}", facts.device->name, facts.device->driver)
                                  : fmt::format("{}, {} thread{} a rank", facts.device->name, facts.threads,
                                                facts.threads == 1 ? "" : "s"));
  rows.emplace_back("dataset", dataset_line(facts));
  if (facts.evaluation != nullptr) rows.emplace_back("evaluate", evaluation_line(facts));
  if (options.packing) rows.emplace_back("packing", packing_line(facts));
  rows.emplace_back(
      "step",
      fmt::format("{} {} = {} rank{} x {} a micro-batch x {} accumulated; optimizer adamw ({} "
                  "moments), {} schedule, peak {:g}",
                  facts.global_batch, options.packing ? "packs" : "samples", session_.world_size(),
                  session_.world_size() == 1 ? "" : "s", options.per_device_train_batch_size,
                  options.gradient_accumulation_steps, options.optim == "adamw_8bit" ? "8-bit" : "fp32",
                  options.lr_scheduler_type, options.learning_rate));
  std::string steps = fmt::format("{} (about {:.2f} epochs)", facts.total_steps, facts.epochs);
  if (facts.start_step > 0) steps += fmt::format(", resumed after step {}", facts.start_step);
  rows.emplace_back("steps", steps);
  rows.emplace_back("output", options.output_dir);
  const std::lock_guard lock(mutex_);
  console_.banner(rows);
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (session_.allowed_cpus() < 2 && online >= 2L * session_.local_size()) {
    console_.note(
        fmt::format("a rank may use 1 of this node's {} CPUs; mpirun --bind-to none gives it more", online));
  }
}

void TrainDisplay::plan(const train::MemoryPlan& plan) {
  note(fmt::format("memory: {}, {} for passes of at most {} tokens", plan.reason,
                   human_bytes(static_cast<double>(plan.activation_bytes)), plan.reserved_tokens));
}

void TrainDisplay::evaluated(const train::EvaluationOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  if (console_.is_terminal()) console_.end_phase();
  console_.table({{"loss", fmt::format("{}", outcome.loss)},
                  {"perplexity", fmt::format("{}", outcome.perplexity)},
                  {"target tokens", fmt::format("{}", outcome.target_tokens)},
                  {"tokens", fmt::format("{}", outcome.tokens)},
                  {"samples", fmt::format("{}", outcome.samples)},
                  {"time", human_duration(outcome.seconds)}});
}

void TrainDisplay::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  console_.note(text);
}

void TrainDisplay::warning(const std::string& text) {
  const std::lock_guard lock(mutex_);
  console_.warning(text);
}

void TrainDisplay::step(const train::StepReport& report) {
  const std::lock_guard lock(mutex_);
  const store::StepRow& row = report.row;
  rate_.add(1, static_cast<double>(row.tokens), row.step_seconds);
  const bool last = row.step == report.total_steps;
  if (!console_.is_terminal() && row.step % logging_steps_ != 0 && row.step != 1 && !last) return;
  StepView view;
  view.step = row.step;
  view.total_steps = report.total_steps;
  view.epoch = row.epoch;
  view.loss = row.loss;
  view.learning_rate = row.learning_rate;
  view.grad_norm = row.grad_norm;
  view.it_per_s = rate_.steps_per_second();
  view.tokens_per_s = rate_.tokens_per_second();
  view.eta_seconds = rate_.seconds_for(static_cast<double>(report.total_steps - row.step));
  if (cuda_) view.gpu_memory_bytes = report.memory_bytes;
  console_.step(view);
}

void TrainDisplay::checkpoint(const std::filesystem::path& path, std::int64_t) {
  const std::lock_guard lock(mutex_);
  last_checkpoint_ = path.string();
  if (!console_.is_terminal()) console_.note("checkpoint " + last_checkpoint_);
}

void TrainDisplay::evaluating(std::int64_t done, std::int64_t batches) {
  const std::lock_guard lock(mutex_);
  // A log has the result alone.
  if (console_.is_terminal())
    console_.phase("evaluating", static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(batches),
                   "batches");
}

void TrainDisplay::evaluation(const store::EvalRow& row) {
  const std::lock_guard lock(mutex_);
  if (console_.is_terminal()) console_.end_phase();
  console_.note(
      fmt::format("evaluation after step {}: loss {:.4f}  perplexity {:.4g}  {} target tokens in {}",
                  row.step, row.loss, row.perplexity, row.target_tokens, human_duration(row.seconds)));
}

void TrainDisplay::summary(const TrainOptions& options, cluster::StopReason reason, std::int64_t steps_done,
                           std::int64_t total_steps, double seconds) {
  const std::lock_guard lock(mutex_);
  console_.finish();
  const std::filesystem::path output = options.output_dir;
  if (reason != cluster::StopReason::none) {
    console_.note(
        fmt::format("stopped by {} after step {} of {}; continue with the same command and --resume auto",
                    cluster::describe(reason), steps_done, total_steps));
  } else {
    console_.note(fmt::format("done: {} steps in {}", steps_done, human_duration(seconds)));
  }
  std::vector<std::pair<std::string, std::string>> rows;
  if (reason == cluster::StopReason::none) {
    rows.emplace_back("adapter", (output / "adapter").string());
    if (options.save_model) rows.emplace_back(options.save_method, options.save_path);
  }
  if (!last_checkpoint_.empty()) rows.emplace_back("checkpoint", last_checkpoint_);
  rows.emplace_back("metrics", (output / "metrics.h5").string());
  console_.table(rows);
}

}  // namespace ranktune::app
