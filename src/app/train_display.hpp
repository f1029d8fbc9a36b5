// What `ranktune train` shows: rank 0 speaks, the others are silent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "app/console.hpp"
#include "app/inputs.hpp"
#include "app/options.hpp"
#include "cluster/devices.hpp"
#include "cluster/session.hpp"
#include "cluster/signals.hpp"
#include "data/token_store.hpp"
#include "train/trainer.hpp"

namespace ranktune::app {

// What the start banner tells.
struct RunFacts {
  const TrainOptions* options = nullptr;
  const Inputs* inputs = nullptr;
  const data::TokenStore* store = nullptr;
  const data::TokenStore* evaluation = nullptr;  // where there is one
  const cluster::DeviceChoice* device = nullptr;
  std::int64_t trainable = 0;  // parameters
  int threads = 1;
  std::string dtype;
  std::string communicator;
  std::int64_t total_steps = 0;
  double epochs = 0;       // in these steps
  std::int64_t packs = 0;  // of the first epoch, with --packing
  std::int64_t global_batch = 0;
  std::int64_t start_step = 0;
};

// Calls may come from the loop and from the I/O thread.
class TrainDisplay final : public train::TrainObserver {
 public:
  explicit TrainDisplay(const cluster::Session& session,
                        ConsoleSettings settings = ConsoleSettings::of_process());

  void begin(const std::string& phase, const std::string& unit);
  void progress(std::uint64_t done, std::uint64_t total);
  void end(const std::string& remark);
  void banner(const RunFacts& facts);
  void plan(const train::MemoryPlan& plan);
  void evaluated(const train::EvaluationOutcome& outcome);  // of ranktune eval
  void note(const std::string& text);
  void warning(const std::string& text);
  void summary(const TrainOptions& options, cluster::StopReason reason, std::int64_t steps_done,
               std::int64_t total_steps, double seconds);

  void step(const train::StepReport& report) override;
  void checkpoint(const std::filesystem::path& path, std::int64_t step) override;
  void evaluating(std::int64_t done, std::int64_t batches) override;
  void evaluation(const store::EvalRow& row) override;

 private:
  const cluster::Session& session_;
  std::mutex mutex_;
  Console console_;
  RateMeter rate_;
  std::string phase_, unit_;
  std::int64_t logging_steps_ = 1;
  bool cuda_ = false;
  std::string last_checkpoint_;
};

}  // namespace ranktune::app
