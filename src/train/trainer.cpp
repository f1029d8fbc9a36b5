#include "train/trainer.hpp"

#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "train/loading.hpp"
#include "train/output.hpp"

namespace ranktune::train {
namespace {

// Deadlines of the watchdog, from the last sign of progress.
constexpr double kFirstStepDeadline = 1800;
constexpr double kStepDeadline = 600;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<float> to_host(const at::Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  at::Tensor host = at::from_blob(values.data(), tensor.sizes(), at::kFloat);
  host.copy_(tensor);
  return values;
}

// Host memory for a tensor of the state: codes, or fp32.
store::StateValues empty_like(const at::Tensor& tensor) {
  const auto size = static_cast<std::size_t>(tensor.numel());
  if (tensor.scalar_type() == at::kByte) return std::vector<std::uint8_t>(size);
  return std::vector<float>(size);
}

store::StateValues copy_of(const at::Tensor& tensor) {
  store::StateValues values = empty_like(tensor);
  std::visit(
      [&](auto& host) { at::from_blob(host.data(), tensor.sizes(), tensor.scalar_type()).copy_(tensor); },
      values);
  return values;
}

}  // namespace

Trainer::Trainer(const TrainSettings& settings, model::Decoder& decoder, const data::TokenStore& store,
                 const TrainEnvironment& environment)
    : settings_(settings),
      decoder_(decoder),
      store_(store),
      environment_(environment),
      global_batch_(settings.micro_batch * settings.accumulation * environment.session.world_size()),
      order_(store, global_batch_, settings.seed, settings.shuffle, settings.pack_length),
      engine_(decoder, settings.optimizer, environment.communicator, &environment.watchdog) {}

void Trainer::start_fresh(std::uint64_t lora_seed) {
  at::Tensor host = at::empty({decoder_.layout().elements}, at::kFloat).zero_();
  model::initialise_lora(decoder_.layout(), lora_seed,
                         {host.data_ptr<float>(), static_cast<std::size_t>(host.numel())});
  engine_.buffers().master.copy_(host);
  engine_.publish_master();
}

void Trainer::start_from(const exporting::Adapter& adapter) {
  engine_.buffers().master.copy_(adapter_parameters(decoder_.layout(), adapter));
  engine_.publish_master();
}

void Trainer::resume(std::int64_t step, std::vector<store::StateValues>& values) {
  const auto targets = engine_.state();
  values.resize(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    at::Tensor target = targets[i].second;
    if (!environment_.session.is_root()) values[i] = empty_like(target);
    std::visit(
        [&](auto& host) {
          environment_.session.broadcast_bytes(host.data(), host.size() * sizeof(host[0]));
          target.copy_(at::from_blob(host.data(), target.sizes(), target.scalar_type()));
        },
        values[i]);
    values[i] = {};
  }
  engine_.publish_master();
  steps_done_ = step;
  saved_step_ = step;
}

MemoryRequest Trainer::measure_windows() const {
  const cluster::Session& session = environment_.session;
  MemoryRequest request;
  for (std::int64_t step = steps_done_; step < settings_.total_steps; ++step) {
    std::int64_t window = 0;
    for (const std::int64_t sample : order_.samples(step, session.rank(), session.world_size())) {
      const auto length = static_cast<std::int64_t>(store_.sample(sample).size());
      window += length;
      request.longest_sample = std::max(request.longest_sample, length);
    }
    request.largest_window = std::max(request.largest_window, window);
  }
  request.largest_window = session.max(request.largest_window);
  request.longest_sample = session.max(request.longest_sample);
  return request;
}

const MemoryPlan& Trainer::plan(Recompute recompute, std::int64_t max_tokens_per_pass,
                                std::int64_t memory_limit) {
  MemoryRequest request = measure_windows();
  request.recompute = recompute;
  request.max_tokens_per_pass = max_tokens_per_pass;
  const cluster::Session& session = environment_.session;
  request.free_bytes = least_free_bytes(session, decoder_.options().device, memory_limit);
  return adopt(plan_memory(decoder_, request), memory_limit);
}

const MemoryPlan& Trainer::adopt(MemoryPlan plan, std::int64_t memory_limit) {
  // The split is the plan's, since bits depend on it; how much it takes depends on the steps that are left.
  const MemoryRequest left = measure_windows();
  plan.reserved_tokens = largest_pass(left, plan.max_tokens_per_pass);
  if (environment_.evaluation != nullptr) {
    const std::int64_t free_bytes =
        least_free_bytes(environment_.session, decoder_.options().device, memory_limit);
    evaluation_plan_ = plan_evaluation(decoder_, *environment_.evaluation, settings_.eval_batch,
                                       plan.reserved_tokens, plan.recomputed, free_bytes);
    plan.reserved_tokens = evaluation_plan_.reserved_tokens;
  }
  plan.activation_bytes = decoder_.activation_bytes(plan.reserved_tokens, plan.recomputed);
  plan_ = std::move(plan);
  engine_.reserve(plan_.reserved_tokens, plan_.recomputed);
  settings_.bits["plan"] = {{"recomputed", plan_.recomputed},
                            {"max_tokens_per_pass", plan_.max_tokens_per_pass}};
  return plan_;
}

std::vector<data::PassBatch> Trainer::passes_of(std::int64_t step) const {
  const auto share = order_.samples(step, environment_.session.rank(), environment_.session.world_size());
  return data::make_passes(store_, share, plan_.max_tokens_per_pass);
}

cluster::StopReason Trainer::run() {
  // On the GPU a step is read back while the next one runs, so that the host never waits.
  const std::size_t lag = decoder_.options().device.is_cuda() ? 1 : 0;
  if (evaluation_is_due(steps_done_)) evaluate();  // the checkpoint was made by a stop that came before it
  last_finished_ = steady_seconds();
  environment_.watchdog.phase("first step", kFirstStepDeadline);
  std::int64_t launched = steps_done_;
  while (launched < settings_.total_steps && stop_seen_ == 0) {
    const double rate = learning_rate(settings_.schedule, launched);
    learning_rates_.push_back(rate);
    const bool asked = environment_.signals.reason() != cluster::StopReason::none;
    engine_.launch(launched, rate, passes_of(launched), asked ? 1.0 : 0.0);
    ++launched;
    environment_.watchdog.progress(launched);
    drain(lag);
    if (evaluation_is_due(launched)) {
      drain(0);
      if (stop_seen_ == 0) evaluate();
    }
    if (settings_.save_steps > 0 && launched % settings_.save_steps == 0 && stop_seen_ == 0) {
      drain(0);
      save();
    }
  }
  drain(0);
  if (saved_step_ != steps_done_) save();
  if (environment_.io != nullptr) environment_.io->drain();
  if (stop_seen_ == 0) return cluster::StopReason::none;
  return cluster::agreed_stop(environment_.session, environment_.signals.reason());
}

void Trainer::drain(std::size_t lag) {
  while (const auto outcome = engine_.collect(lag)) {
    const double rate = learning_rates_.front();
    learning_rates_.erase(learning_rates_.begin());
    finish_step(*outcome, rate);
  }
}

void Trainer::finish_step(const StepOutcome& outcome, double learning_rate) {
  if (outcome.bad) stop_on_bad_step(outcome);
  const double seconds = outcome.finished_at - last_finished_;
  last_finished_ = outcome.finished_at;
  steps_done_ = outcome.step + 1;
  stop_seen_ = std::max(stop_seen_, outcome.stop);
  environment_.watchdog.phase("training", kStepDeadline);
  report(outcome, learning_rate, seconds);
}

void Trainer::stop_on_bad_step(const StepOutcome& outcome) const {
  const std::int64_t world = environment_.session.world_size();
  std::string who = "the sum over the ranks";
  auto suspects = order_.samples(outcome.step, 0, 1);
  if (outcome.bad_rank >= 0) {
    who = fmt::format("rank {} on {}", outcome.bad_rank,
                      environment_.session.hosts()[static_cast<std::size_t>(outcome.bad_rank)]);
    suspects = order_.samples(outcome.step, outcome.bad_rank, world);
  }
  std::string samples;
  for (const std::int64_t sample : suspects) {
    samples += (samples.empty() ? "" : ", ") + std::to_string(sample);
  }
  // The flag came with the all-reduce: every rank is here, at the same step.
  throw cluster::AgreedError(
      fmt::format("step {}: loss or gradient of {} is not finite (samples {}); neither parameters nor "
                  "checkpoints were changed by it; "
                  "try a smaller --learning_rate",
                  outcome.step + 1, who, samples));
}

void Trainer::report(const StepOutcome& outcome, double learning_rate, double step_seconds) {
  const cluster::Session& session = environment_.session;
  if (!session.is_root()) return;
  write_rank_rows(outcome.rank_stats);

  store::StepRow row{};
  row.step = outcome.step + 1;
  const auto samples_after = order_.samples_before(outcome.step + 1);
  row.samples = samples_after - order_.samples_before(outcome.step);
  row.epoch = static_cast<double>(samples_after) / static_cast<double>(store_.samples());
  row.tokens = std::llround(outcome.tokens);
  row.target_tokens = std::llround(outcome.target_tokens);
  row.loss = outcome.loss;
  row.learning_rate = learning_rate;
  row.grad_norm = outcome.grad_norm;
  row.step_seconds = step_seconds;
  row.data_seconds = outcome.data_seconds;
  row.compute_seconds = outcome.compute_seconds;
  row.communication_seconds = outcome.communication_seconds;
  environment_.io->submit([metrics = environment_.metrics, row] { metrics->write(row); });
  environment_.observer->step({row, settings_.total_steps, peak_device_bytes(decoder_.options().device)});
}

void Trainer::write_rank_rows(const std::vector<RankStats>& stats) {
  std::vector<store::RankRow> rows;
  for (const RankStats& s : stats) {
    rows.push_back({s.step, s.rank, s.tokens, s.compute_seconds, s.waiting_seconds, s.memory_bytes});
  }
  if (rows.empty()) return;
  environment_.io->submit([metrics = environment_.metrics, rows] { metrics->write(rows); });
}

void Trainer::gather_rank_rows() {
  const std::vector<RankStats> mine = engine_.take_unsent_stats();
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(RankStats));
  const auto all = environment_.session.gather_all(bytes);
  if (!environment_.session.is_root()) return;
  std::vector<RankStats> stats;
  for (const std::string& part : all) {
    const std::size_t count = part.size() / sizeof(RankStats);
    const std::size_t before = stats.size();
    stats.resize(before + count);
    std::memcpy(stats.data() + before, part.data(), count * sizeof(RankStats));
  }
  std::stable_sort(stats.begin(), stats.end(),
                   [](const RankStats& a, const RankStats& b) { return a.step < b.step; });
  write_rank_rows(stats);
}

bool Trainer::evaluation_is_due(std::int64_t step) const {
  if (environment_.evaluation == nullptr || evaluated_step_ == step) return false;
  return step == settings_.total_steps || (settings_.eval_steps > 0 && step % settings_.eval_steps == 0);
}

void Trainer::evaluate() {
  environment_.watchdog.phase("evaluation", kStepDeadline);
  const bool root = environment_.session.is_root();
  const auto outcome = train::evaluate(decoder_, *environment_.evaluation, evaluation_plan_,
                                       environment_.session, environment_.signals, environment_.watchdog,
                                       [&](std::int64_t done, std::int64_t batches) {
                                         if (root) environment_.observer->evaluating(done, batches);
                                       });
  last_finished_ = steady_seconds();  // the time belongs to no step
  environment_.watchdog.phase("training", kStepDeadline);
  if (!outcome) {
    stop_seen_ = 1;
    return;
  }
  evaluated_step_ = steps_done_;
  if (!root) return;
  const store::EvalRow row{steps_done_, outcome->loss, outcome->perplexity, outcome->target_tokens,
                           outcome->seconds};
  environment_.io->submit([metrics = environment_.metrics, row] { metrics->write(row); });
  environment_.observer->evaluation(row);
}

void Trainer::save() {
  environment_.watchdog.phase("checkpoint", kStepDeadline);
  saved_step_ = steps_done_;
  gather_rank_rows();
  if (!environment_.session.is_root()) return;
  struct Snapshot {
    std::vector<std::pair<std::string, store::StateValues>> state;
    exporting::Adapter adapter;
  };
  environment_.io->drain();  // one checkpoint at a time is in memory
  if (environment_.evaluation != nullptr) settings_.bits["evaluated_step"] = evaluated_step_;
  auto snapshot = std::make_shared<Snapshot>();
  for (const auto& [name, tensor] : engine_.state()) snapshot->state.emplace_back(name, copy_of(tensor));
  snapshot->adapter = adapter();
  environment_.io->submit([this, snapshot, step = steps_done_] {
    RT_CHECK(environment_.lock->still_ours(), "another job has taken over the output directory");
    environment_.metrics->sync();  // rows first: a checkpoint promises the rows up to its step
    std::vector<store::StateArray> arrays;
    for (const auto& [name, values] : snapshot->state) {
      std::visit([&](const auto& host) { arrays.push_back({name, std::span(host)}); }, values);
    }
    const auto path = store::write_checkpoint(
        settings_.output_dir, step, settings_.recipe, settings_.bits, arrays, attempt_name(),
        [&](const std::filesystem::path& folder) {
          const auto adapter_folder = folder / "adapter";
          std::filesystem::create_directory(adapter_folder);
          exporting::write_adapter(adapter_folder, snapshot->adapter, settings_.tokenizer_folder);
        });
    environment_.metrics->write(
        store::EventRow{wall_seconds(), step, "checkpoint", path.filename().string()});
    environment_.metrics->sync();
    store::prune_checkpoints(settings_.output_dir, settings_.save_total_limit);
    environment_.observer->checkpoint(path, step);
  });
}

exporting::Adapter Trainer::adapter() {
  exporting::Adapter result;
  result.config = settings_.adapter;
  const std::vector<float> master = to_host(engine_.buffers().master);
  for (const model::FlatTensor& tensor : decoder_.layout().tensors) {
    const auto begin = master.begin() + tensor.offset;
    result.tensors.push_back({tensor.name,
                              {tensor.rows, tensor.columns},
                              std::vector<float>(begin, begin + tensor.rows * tensor.columns)});
  }
  return result;
}

}  // namespace ranktune::train
