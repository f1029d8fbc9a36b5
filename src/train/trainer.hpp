// The training loop: which samples, when to log, save and stop. One can read it in one sitting.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/communicator.hpp"
#include "cluster/session.hpp"
#include "cluster/signals.hpp"
#include "cluster/watchdog.hpp"
#include "data/sample_order.hpp"
#include "data/token_store.hpp"
#include "export/adapter.hpp"
#include "model/decoder.hpp"
#include "store/checkpoint.hpp"
#include "store/metrics.hpp"
#include "store/run_lock.hpp"
#include "train/evaluation.hpp"
#include "train/io_thread.hpp"
#include "train/memory_plan.hpp"
#include "train/schedule.hpp"
#include "train/step_engine.hpp"

namespace ranktune::train {

struct TrainSettings {
  std::int64_t micro_batch = 2;   // samples of a rank in a micro-batch
  std::int64_t accumulation = 4;  // micro-batches in a step
  std::int64_t total_steps = 0;
  ScheduleSettings schedule;
  OptimizerSettings optimizer;
  std::uint64_t seed = 3407;
  bool shuffle = true;
  std::int64_t pack_length = 0;       // tokens; > 0: micro-batches are of packs, not of samples
  std::int64_t save_steps = 0;        // 0: only at the end
  std::int64_t save_total_limit = 0;  // 0: all are kept
  std::int64_t eval_steps = 0;        // evaluate every so many steps, and at the end; 0: at the end only
  std::int64_t eval_batch = 4;        // samples of a rank in an evaluation batch
  std::filesystem::path output_dir;
  std::filesystem::path tokenizer_folder;  // whose files go with the adapter
  exporting::AdapterConfig adapter;
  nlohmann::json recipe;  // what must be equal on resume
  nlohmann::json bits;    // what the bits depend on
};

// A step's row and what only the display wants.
struct StepReport {
  store::StepRow row;
  std::int64_t total_steps = 0;
  std::int64_t memory_bytes = 0;
};

// What the loop tells on rank 0.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void step(const StepReport& report) = 0;
  virtual void checkpoint(const std::filesystem::path& path, std::int64_t step) = 0;
  virtual void evaluating(std::int64_t done, std::int64_t batches) = 0;
  virtual void evaluation(const store::EvalRow& row) = 0;
};

// Everything of the job that the loop works with; all of it outlives the trainer.
struct TrainEnvironment {
  const cluster::Session& session;
  cluster::Communicator& communicator;
  cluster::SignalWatcher& signals;
  cluster::Watchdog& watchdog;
  IoThread* io = nullptr;                        // rank 0
  store::MetricsWriter* metrics = nullptr;       // rank 0, used on the I/O thread only
  store::RunLock* lock = nullptr;                // rank 0
  TrainObserver* observer = nullptr;             // rank 0
  const data::TokenStore* evaluation = nullptr;  // samples that are evaluated, the same on all ranks
};

class Trainer {
 public:
  Trainer(const TrainSettings& settings, model::Decoder& decoder, const data::TokenStore& store,
          const TrainEnvironment& environment);

  // Starting points; collective, exactly one of them is called before run().
  void start_fresh(std::uint64_t lora_seed);
  void start_from(const exporting::Adapter& adapter);  // throws UserError where shapes differ
  // values: those of state(), in its order, on rank 0, each of the type and size found there.
  void resume(std::int64_t step, std::vector<store::StateValues>& values);
  // The step of the last evaluation before the checkpoint was made, from its bits.
  void resume_evaluation(std::int64_t evaluated_step) { evaluated_step_ = evaluated_step; }
  // What a checkpoint holds, by name: parameters and the optimizer's state, where they are on the device.
  std::vector<std::pair<std::string, at::Tensor>> state() const { return engine_.state(); }

  // Plans memory for the steps that are left; collective.
  const MemoryPlan& plan(Recompute recompute, std::int64_t max_tokens_per_pass, std::int64_t memory_limit);
  const MemoryPlan& adopt(MemoryPlan plan, std::int64_t memory_limit);  // that of a checkpoint instead

  // Trains to the end or until a stop was agreed; a checkpoint is committed at the end either way.
  // Collective. Throws AgreedError on a loss or gradient that is not finite, naming step, rank and samples;
  // nothing is saved then.
  cluster::StopReason run();

  std::int64_t steps_done() const { return steps_done_; }
  // The trained matrices on the host, with PEFT's names; rank 0.
  exporting::Adapter adapter();

 private:
  MemoryRequest measure_windows() const;  // of the steps that are left, over all ranks; collective
  std::vector<data::PassBatch> passes_of(std::int64_t step) const;
  void finish_step(const StepOutcome& outcome, double learning_rate);
  void report(const StepOutcome& outcome, double learning_rate, double step_seconds);
  void stop_on_bad_step(const StepOutcome& outcome) const;
  bool evaluation_is_due(std::int64_t step) const;
  void evaluate();
  void save();
  void drain(std::size_t lag);
  void write_rank_rows(const std::vector<RankStats>& stats);
  void gather_rank_rows();  // those that no all-reduce has carried; collective

  TrainSettings settings_;
  model::Decoder& decoder_;
  const data::TokenStore& store_;
  TrainEnvironment environment_;
  std::int64_t global_batch_;
  data::SampleOrder order_;
  StepEngine engine_;
  MemoryPlan plan_;
  std::int64_t steps_done_ = 0;  // collected
  std::int64_t saved_step_ = -1;
  EvaluationPlan evaluation_plan_;
  std::int64_t evaluated_step_ = 0;
  double last_finished_ = 0;
  double stop_seen_ = 0;
  std::vector<double> learning_rates_;  // of the steps in flight
};

}  // namespace ranktune::train
