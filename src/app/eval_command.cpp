#include "app/eval_command.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <optional>

#include "app/inputs.hpp"
#include "app/phases.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "train/evaluation.hpp"
#include "train/memory_plan.hpp"

namespace ranktune::app {
namespace {

constexpr double kBatchDeadline = 600;  // seconds without a batch that is done

std::optional<train::EvaluationOutcome> measure(const Phases& run, const Inputs& inputs,
                                                model::Decoder& decoder, const data::TokenStore& store) {
  const cluster::Session& session = run.session;
  const std::int64_t free_bytes =
      train::least_free_bytes(session, decoder.options().device, memory_limit_of(run.options));
  const std::int64_t layers = inputs.model.layers;  // all share one block's activations
  train::EvaluationPlan plan;
  session.together("planning memory", [&] {
    plan =
        train::plan_evaluation(decoder, store, run.options.per_device_eval_batch_size, 0, layers, free_bytes);
    decoder.reserve(plan.reserved_tokens, layers);
  });
  run.watchdog.phase("evaluation", kBatchDeadline);
  return train::evaluate(
      decoder, store, plan, session, run.signals, run.watchdog,
      [&](std::int64_t done, std::int64_t batches) { run.display.evaluating(done, batches); });
}

}  // namespace

int run_eval(const cluster::Session& session, const ParseResult& parsed) {
  const c10::InferenceMode no_autograd;
  const TrainOptions& options = parsed.options;
  cluster::SignalWatcher signals(0, steady_seconds());
  cluster::Watchdog watchdog(session);
  TrainDisplay display(session);
  const Phases run{session, options, watchdog, signals, display};

  Inputs inputs;
  watchdog.phase("checking the input", kLoadDeadline);
  session.together("checking the input", [&] {
    std::vector<std::string> problems = parsed.problems;
    inputs = check_inputs(options, problems);
    if (!problems.empty()) throw UserError(problems);
  });
  if (!inputs.init_adapter) inputs.lora.targets.fill(false);  // the model as it is
  const Devices devices = start_devices(run, inputs.model);
  const data::TokenStore store = read_samples(run, inputs).evaluation;
  display.note(fmt::format("evaluating {}{} ({}) on {} of {}: {} samples, {} tokens", options.model_name,
                           inputs.init_adapter ? " with " + *options.init_adapter : "", devices.dtype,
                           devices.choice.name,
                           options.eval_dataset.value_or("what is held out of " + options.dataset),
                           store.samples(), store.tokens()));
  auto decoder = load_model(run, inputs, devices.choice, devices.dtype, *devices.communicator);
  if (inputs.init_adapter) load_adapter(run, inputs, *decoder);

  const auto outcome = measure(run, inputs, *decoder, store);
  cluster::StopReason reason = cluster::StopReason::none;
  if (outcome) {
    display.evaluated(*outcome);
  } else {
    reason = cluster::agreed_stop(session, signals.reason());
    display.note(fmt::format("stopped by {} before the evaluation was done", cluster::describe(reason)));
  }
  signals.ignore_from_now_on();
  decoder.reset();
  if (devices.choice.cuda) at::cuda::device_synchronize();
  devices.communicator->close();
  watchdog.stop();
  return cluster::exit_code(reason);
}

}  // namespace ranktune::app
