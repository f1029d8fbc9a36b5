#include "app/train_command.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <system_error>

#include "app/inputs.hpp"
#include "app/options.hpp"
#include "app/phases.hpp"
#include "app/run_directory.hpp"
#include "app/run_record.hpp"
#include "app/show_sample.hpp"
#include "app/train_display.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "cluster/devices.hpp"
#include "cluster/signals.hpp"
#include "cluster/watchdog.hpp"
#include "store/atomic_directory.hpp"
#include "train/output.hpp"
#include "train/trainer.hpp"

namespace ranktune::app {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

train::ModelForms forms_of(const TrainOptions& options) {
  train::ModelForms forms;
  forms.merged = options.save_model && options.save_method == "merged_16bit";
  forms.adapter = options.save_model && !forms.merged;
  if (options.save_gguf) forms.gguf = options.quantization;
  return forms;
}

// One run of the command; members in the order in which they come to be, so that they go in the reverse one.
class TrainRun {
 public:
  TrainRun(const cluster::Session& session, TrainOptions options, std::string command_line)
      : session_(session),
        options_(std::move(options)),
        command_line_(std::move(command_line)),
        started_(steady_seconds()),
        signals_(static_cast<double>(options_.max_time.value_or(0)), started_),
        watchdog_(session),
        display_(session),
        phases_{session_, options_, watchdog_, signals_, display_} {}

  int run();

 private:
  void check();
  int show_samples();
  void open_directory();
  void choose_device_and_communicator();
  void read_dataset();
  void show_banner();
  void open_records();
  void prepare_start();
  void restore(std::int64_t step);
  void export_results();
  void finish(cluster::StopReason reason);
  train::TrainSettings settings() const;
  std::int64_t global_batch() const {
    return options_.per_device_train_batch_size * options_.gradient_accumulation_steps *
           session_.world_size();
  }

  const cluster::Session& session_;
  TrainOptions options_;
  std::string command_line_;
  double started_;
  cluster::SignalWatcher signals_;
  cluster::Watchdog watchdog_;
  TrainDisplay display_;
  Phases phases_;
  Inputs inputs_;
  std::unique_ptr<store::RunLock> lock_;  // rank 0
  cluster::DeviceChoice device_;
  int threads_ = 1;
  std::string dtype_;
  std::unique_ptr<cluster::Communicator> communicator_;
  std::string dataset_key_;
  data::TokenStore store_;
  data::TokenStore evaluation_;  // no samples: there is no evaluation
  std::int64_t total_steps_ = 0;
  double epochs_ = 0;       // in all of them
  std::int64_t packs_ = 0;  // of the first epoch
  nlohmann::json recipe_;
  nlohmann::json bits_;
  StartPoint start_;
  std::optional<store::Checkpoint> checkpoint_;  // rank 0, while resuming
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<store::MetricsWriter> metrics_;  // rank 0
  std::unique_ptr<train::Trainer> trainer_;
  // Rank 0. Last, so that it goes first: what was submitted is written while all it refers to is there.
  std::unique_ptr<train::IoThread> io_;
};

void TrainRun::check() {
  watchdog_.phase("checking the input", kLoadDeadline);
  session_.together("checking the input", [&] {
    std::vector<std::string> problems;
    inputs_ = check_inputs(options_, problems);
    if (session_.is_root() && !options_.show_sample) check_directories(options_, problems);
    if (!problems.empty()) throw UserError(problems);
  });
}

// --show_sample: those of the first epoch in their order. Nothing is written but the token cache.
int TrainRun::show_samples() {
  read_dataset();
  if (session_.is_root()) {
    const data::SampleOrder order(store_, global_batch(), static_cast<std::uint64_t>(options_.seed),
                                  options_.shuffle, pack_length_of(options_));
    const data::SampleOrder::Epoch epoch = order.packs(0);
    std::int64_t number = 0;
    for (std::int64_t slot = 0; slot < epoch.slots() && number < *options_.show_sample; ++slot) {
      for (auto i = epoch.starts[slot]; i < epoch.starts[slot + 1] && number < *options_.show_sample; ++i) {
        const std::string pack = options_.packing ? fmt::format(", in pack {}", slot + 1) : "";
        display_.note(fmt::format("\nsample {} of {}{}: {}", ++number, store_.samples(), pack,
                                  sample_table(store_, epoch.samples[i], *inputs_.tokenizer)));
      }
    }
  }
  watchdog_.stop();
  return 0;
}

void TrainRun::open_directory() {
  session_.together("opening the output directory", [&] {
    if (!session_.is_root()) return;
    lock_ = std::make_unique<store::RunLock>(options_.output_dir);
    store::remove_stale_temporaries(options_.output_dir);
    record_save_path(options_);
  });
}

void TrainRun::choose_device_and_communicator() {
  Devices devices = start_devices(phases_, inputs_.model);
  device_ = std::move(devices.choice);
  threads_ = devices.threads;
  dtype_ = devices.dtype;
  communicator_ = std::move(devices.communicator);
}

void TrainRun::read_dataset() {
  Samples samples = read_samples(phases_, inputs_);
  store_ = std::move(samples.training);
  evaluation_ = std::move(samples.evaluation);
  dataset_key_ = samples.key;
  const data::SampleOrder order(store_, global_batch(), static_cast<std::uint64_t>(options_.seed),
                                options_.shuffle, pack_length_of(options_));
  total_steps_ =
      options_.max_steps > 0 ? options_.max_steps : order.steps_of_epochs(*options_.num_train_epochs);
  epochs_ = static_cast<double>(order.samples_before(total_steps_)) / static_cast<double>(store_.samples());
  packs_ = order.packs(0).slots();
}

train::TrainSettings TrainRun::settings() const {
  train::TrainSettings settings;
  settings.micro_batch = options_.per_device_train_batch_size;
  settings.accumulation = options_.gradient_accumulation_steps;
  settings.total_steps = total_steps_;
  settings.schedule = {train::parse_schedule(options_.lr_scheduler_type), options_.learning_rate,
                       warmup_steps_of(options_, total_steps_), total_steps_};
  settings.optimizer.adamw.weight_decay = options_.weight_decay;
  settings.optimizer.eight_bit = options_.optim == "adamw_8bit";
  settings.optimizer.max_grad_norm = options_.max_grad_norm;
  settings.seed = static_cast<std::uint64_t>(options_.seed);
  settings.shuffle = options_.shuffle;
  settings.pack_length = pack_length_of(options_);
  settings.save_steps = options_.save_steps;
  settings.save_total_limit = options_.save_total_limit.value_or(0);
  settings.eval_steps = options_.eval_steps;
  settings.eval_batch = options_.per_device_eval_batch_size;
  settings.output_dir = options_.output_dir;
  settings.tokenizer_folder = inputs_.model_folder;
  settings.adapter = inputs_.adapter;
  settings.recipe = recipe_;
  settings.bits = bits_;
  return settings;
}

void TrainRun::prepare_start() {
  recipe_ = recipe_of(options_, inputs_, dataset_key_, dtype_, global_batch(), total_steps_);
  bits_ = bits_of(session_, device_, *communicator_, options_, threads_);
  std::string message;
  session_.together("finding where to start", [&] {
    if (!session_.is_root()) return;
    start_ = find_start(options_, recipe_, total_steps_, checkpoint_);
    message = to_text(start_);
  });
  session_.broadcast(message);
  start_ = start_point(message);
  for (const std::string& note : start_.notes) display_.warning(note);
}

void TrainRun::show_banner() {
  const std::int64_t layout_parameters = model::make_flat_layout(inputs_.model, inputs_.lora).parameters;
  RunFacts facts;
  facts.options = &options_;
  facts.inputs = &inputs_;
  facts.trainable = layout_parameters;
  facts.store = &store_;
  if (options_.evaluates()) facts.evaluation = &evaluation_;
  facts.device = &device_;
  facts.threads = threads_;
  facts.dtype = dtype_;
  facts.communicator = communicator_->name();
  facts.total_steps = total_steps_;
  facts.epochs = epochs_;
  facts.packs = packs_;
  facts.global_batch = global_batch();
  facts.start_step = start_.step;
  display_.banner(facts);
}

void TrainRun::open_records() {
  const auto devices = session_.gather_all(device_.name + (device_.uuid.empty() ? "" : " " + device_.uuid));
  session_.together("opening metrics", [&] {
    if (!session_.is_root()) return;
    const auto provenance = provenance_of(session_, device_, *communicator_, options_, devices,
                                          inputs_.records.digest, command_line_, recipe_);
    metrics_ = std::make_unique<store::MetricsWriter>(options_.output_dir, start_.step, provenance);
    if (!metrics_->fallback_reason().empty()) display_.warning(metrics_->fallback_reason());
    metrics_->write(store::EventRow{wall_seconds(), start_.step, start_.resumes() ? "resume" : "start",
                                    start_.resumes() ? start_.checkpoint.filename().string() : ""});
    for (const std::string& note : start_.notes) {
      metrics_->write(store::EventRow{wall_seconds(), start_.step, "warning", note});
    }
    if (store_.skipped > 0) {
      metrics_->write(store::EventRow{wall_seconds(), start_.step, "skipped_samples",
                                      fmt::format("{} rows without a target", store_.skipped)});
    }
    io_ = std::make_unique<train::IoThread>([this] { lock_->refresh(); });
  });
}

void TrainRun::restore(std::int64_t step) {
  std::vector<store::StateValues> arrays;
  std::string bits;
  session_.together("restoring the checkpoint", [&] {
    if (!session_.is_root()) return;
    for (const auto& [name, tensor] : trainer_->state()) {
      arrays.push_back(checkpoint_->values(name));
      const auto found =
          std::visit([](const auto& host) { return static_cast<std::int64_t>(host.size()); }, arrays.back());
      const bool codes = std::holds_alternative<std::vector<std::uint8_t>>(arrays.back());
      if (found != tensor.numel() || codes != (tensor.scalar_type() == at::kByte)) {
        throw UserError(fmt::format("{}: {} has {} elements, but this model and optimizer need {}",
                                    start_.checkpoint.string(), name, found, tensor.numel()));
      }
    }
    bits = checkpoint_->bits.dump();
    checkpoint_.reset();
  });
  trainer_->resume(step, arrays);

  session_.broadcast(bits);
  nlohmann::json was = nlohmann::json::parse(bits);
  const nlohmann::json plan = was.value("plan", nlohmann::json());
  trainer_->resume_evaluation(was.value("evaluated_step", std::int64_t{0}));
  was.erase("plan");
  was.erase("evaluated_step");
  for (const std::string& difference : differences(was, bits_)) {
    const std::string note = "not bit-exact: " + difference;
    display_.warning(note);
    if (session_.is_root()) metrics_->write(store::EventRow{wall_seconds(), step, "warning", note});
  }
  if (was.value("world_size", 0) != session_.world_size() || !plan.is_object() ||
      was.value("gradient_accumulation_steps", 0) != options_.gradient_accumulation_steps) {
    return;
  }
  train::MemoryPlan same;
  same.recomputed = plan.value("recomputed", std::int64_t{0});
  same.max_tokens_per_pass = plan.value("max_tokens_per_pass", std::int64_t{0});
  same.reason = "as in the checkpoint";
  display_.plan(trainer_->adopt(same, memory_limit_of(options_)));
  start_.plan_adopted = true;
}

void TrainRun::export_results() {
  watchdog_.phase("exporting", 3600);
  const train::ModelForms forms = forms_of(options_);
  display_.note("saving the adapter" + std::string(options_.exports() ? " and " + options_.save_path : ""));
  session_.together("exporting", [&] {
    if (!session_.is_root()) return;
    const auto adapter = trainer_->adapter();
    train::save_adapter(std::filesystem::path(options_.output_dir) / "adapter", adapter,
                        inputs_.model_folder);
    if (!options_.exports()) return;
    std::optional<model::WeightFiles> base;
    std::optional<train::MergedWeights> merged;
    if (forms.need_base()) {
      base.emplace(inputs_.model_folder);
      merged.emplace(inputs_.model, inputs_.lora, *base, adapter);
    }
    train::save_model(options_.save_path, forms, adapter, merged ? &*merged : nullptr, inputs_.model,
                      inputs_.model_folder);
  });
}

void TrainRun::finish(cluster::StopReason reason) {
  watchdog_.phase("closing files", kLoadDeadline);
  session_.together("closing files", [&] {
    if (!session_.is_root()) return;
    const bool whole = reason == cluster::StopReason::none;
    const std::string why = whole ? "done" : fmt::format("stopped by {}", cluster::describe(reason));
    io_->submit([&] {
      metrics_->write(store::EventRow{wall_seconds(), trainer_->steps_done(), whole ? "end" : "signal", why});
      metrics_->close();
    });
    io_->drain();
    io_.reset();
    display_.summary(options_, reason, trainer_->steps_done(), total_steps_, steady_seconds() - started_);
  });
  signals_.ignore_from_now_on();
  trainer_.reset();
  decoder_.reset();
  if (device_.cuda) at::cuda::device_synchronize();
  communicator_->close();
  watchdog_.stop();
  lock_.reset();
}

int TrainRun::run() {
  const c10::InferenceMode no_autograd;
  check();
  if (options_.show_sample) return show_samples();
  open_directory();
  choose_device_and_communicator();
  read_dataset();
  prepare_start();
  if (start_.kind == StartPoint::Kind::all_done) {
    display_.note(fmt::format("nothing to do: {} holds the finished run", options_.output_dir));
    communicator_->close();
    watchdog_.stop();
    return 0;
  }
  show_banner();
  decoder_ = load_model(phases_, inputs_, device_, dtype_, *communicator_);
  open_records();

  train::TrainEnvironment environment{session_,  *communicator_, signals_,    watchdog_,
                                      io_.get(), metrics_.get(), lock_.get(), &display_};
  if (options_.evaluates()) environment.evaluation = &evaluation_;
  trainer_ = std::make_unique<train::Trainer>(settings(), *decoder_, store_, environment);
  if (start_.resumes()) {
    restore(start_.step);
  } else if (inputs_.init_adapter) {
    session_.together("reading the adapter",
                      [&] { trainer_->start_from(exporting::read_adapter(*inputs_.init_adapter)); });
  } else {
    trainer_->start_fresh(static_cast<std::uint64_t>(options_.random_state));
  }
  if (!start_.plan_adopted && (start_.step < total_steps_ || options_.evaluates())) {
    session_.together("planning memory", [&] {
      display_.plan(trainer_->plan(recompute_of(options_), options_.max_tokens_per_pass.value_or(0),
                                   memory_limit_of(options_)));
    });
  }

  const cluster::StopReason reason = trainer_->run();
  if (reason == cluster::StopReason::none) export_results();
  finish(reason);
  return cluster::exit_code(reason);
}

}  // namespace

int run_train(const cluster::Session& session, const std::vector<std::string>& arguments,
              const std::string& command_line) {
  const ParseResult parsed = parse_train_options(arguments);
  if (!parsed.problems.empty()) {
    // What can be checked all the same is checked, so that all problems are reported together.
    session.together("reading the command line", [&] {
      std::vector<std::string> problems = parsed.problems;
      check_inputs(parsed.options, problems);
      throw UserError(problems);
    });
  }
  return TrainRun(session, parsed.options, command_line).run();
}

}  // namespace ranktune::app
