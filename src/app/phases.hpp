// The phases that training and evaluation have in common, from the devices to the model in memory.
#pragma once

#include <memory>
#include <string>

#include "app/inputs.hpp"
#include "app/options.hpp"
#include "app/train_display.hpp"
#include "cluster/communicator.hpp"
#include "cluster/devices.hpp"
#include "cluster/session.hpp"
#include "cluster/signals.hpp"
#include "cluster/watchdog.hpp"
#include "data/token_store.hpp"
#include "model/decoder.hpp"

namespace ranktune::app {

// Seconds without a sign of progress while reading and tokenising.
inline constexpr double kLoadDeadline = 600;

// What every phase works with.
struct Phases {
  const cluster::Session& session;
  const TrainOptions& options;
  cluster::Watchdog& watchdog;
  cluster::SignalWatcher& signals;
  TrainDisplay& display;
};

struct Devices {
  cluster::DeviceChoice choice;
  int threads = 1;    // for arithmetic on the CPU
  std::string dtype;  // bfloat16, float32
  std::unique_ptr<cluster::Communicator> communicator;
};
// Collective. Throws AgreedUserError where the device cannot do what was asked for.
Devices start_devices(const Phases& run, const model::ModelConfig& model);

struct Samples {
  data::TokenStore training;
  data::TokenStore evaluation;  // of --eval_dataset or --eval_split; without samples where neither is given
  std::string key;              // everything that the tokens of --dataset depend on
};
// Collective: tokenises the rows of the inputs, which are then gone, and holds samples out. A --dataset
// without a name is not read. Throws AgreedUserError where there is nothing to train on or to evaluate,
// StopRequested.
Samples read_samples(const Phases& run, Inputs& inputs);

// Collective. Throws StopRequested.
std::unique_ptr<model::Decoder> load_model(const Phases& run, Inputs& inputs,
                                           const cluster::DeviceChoice& device, const std::string& dtype,
                                           cluster::Communicator& communicator);

// Collective: the adapter of --init_adapter into the decoder, where nothing is trained.
void load_adapter(const Phases& run, const Inputs& inputs, const model::Decoder& decoder);

}  // namespace ranktune::app
