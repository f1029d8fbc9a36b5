#include "app/phases.hpp"

#include <ATen/Parallel.h>
#include <ATen/cuda/CUDAContext.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.hpp"
#include "base/file.hpp"
#include "train/dataset.hpp"
#include "train/loading.hpp"

namespace ranktune::app {
namespace {

// Threads for CPU arithmetic: OMP_NUM_THREADS where the user set it, else this rank's share of the CPUs.
int choose_threads(const cluster::Session& session) {
  const char* asked = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe): nobody writes it
  if (asked == nullptr || *asked == '\0') at::set_num_threads(session.allowed_cpus());
  return at::get_num_threads();
}

data::TokenStore tokenise(const Phases& run, const Inputs& inputs, data::Records& records,
                          const std::string& phase, std::string& key) {
  const TrainOptions& options = run.options;
  const data::TokenizeOptions how =
      tokenize_options(options, inputs.model_folder, records, run.session.allowed_cpus());
  key = data::token_cache_key(records, *inputs.tokenizer, how);
  const auto rows = static_cast<std::int64_t>(records.rows.size());
  run.display.begin(phase, "rows");
  auto result = train::tokenised_dataset(
      run.session, records, *inputs.tokenizer, how,
      cache_directory(std::filesystem::path(options.output_dir) / ".cache"), [&](std::int64_t done) {
        run.watchdog.progress();
        run.signals.poll();
        run.display.progress(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(rows));
      });
  run.display.end(result.from_cache ? "from the cache" : "");
  if (!result.warning.empty()) run.display.warning("the token cache was not written: " + result.warning);
  records.rows = {};
  return std::move(result.store);
}

data::TokenStore hold_out_samples(const Phases& run, data::TokenStore& store) {
  const TrainOptions& options = run.options;
  const std::int64_t samples = store.samples();
  const double asked = *options.eval_split;
  const auto count =
      std::max<std::int64_t>(1, std::llround(asked < 1 ? asked * static_cast<double>(samples) : asked));
  run.session.together("holding samples out", [&] {
    if (count >= samples) {
      throw UserError(
          fmt::format("--eval_split {} leaves nothing to train on: {} has {} samples; use a smaller one",
                      asked, options.dataset, samples));
    }
  });
  return data::hold_out(store, count, static_cast<std::uint64_t>(options.seed));
}

}  // namespace

Devices start_devices(const Phases& run, const model::ModelConfig& model) {
  const TrainOptions& options = run.options;
  Devices devices;
  run.watchdog.phase("starting the devices", kLoadDeadline);
  devices.threads = choose_threads(run.session);
  run.session.together("choosing devices", [&] {
    cluster::prepare_environment(run.session, options.allow_shared_gpu);
    devices.choice = cluster::choose_device(run.session, options.device, options.allow_shared_gpu);
    if (!devices.choice.cuda && options.dtype == "bfloat16") {
      throw UserError(
          "--dtype bfloat16 needs a GPU, and this run is on the CPU; leave the flag out or use float32");
    }
    if (devices.choice.cuda && options.dtype != "float32" &&
        (model.head_dim % 8 != 0 || model.head_dim > 256)) {
      throw UserError(
          fmt::format("head_dim = {} cannot be trained in bfloat16 (a multiple of 8 up to 256 can); use "
                      "--dtype float32",
                      model.head_dim));
    }
    devices.dtype = options.dtype != "auto" ? options.dtype : devices.choice.cuda ? "bfloat16" : "float32";
    if (devices.choice.cuda) {
      // CUDA graphs cannot be captured on the default stream.
      at::cuda::setCurrentCUDAStream(
          at::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(devices.choice.index)));
    }
    devices.communicator = devices.choice.cuda ? cluster::make_nccl_communicator(run.session)
                                               : cluster::make_mpi_communicator(run.session);
  });
  return devices;
}

Samples read_samples(const Phases& run, Inputs& inputs) {
  const TrainOptions& options = run.options;
  run.watchdog.phase("tokenising", kLoadDeadline);
  Samples samples;
  const auto read = [&](data::Records& records, const std::string& name, const char* phase,
                        const char* purpose, std::string& key) {
    data::TokenStore store = tokenise(run, inputs, records, phase, key);
    run.session.together("counting the samples", [&] {
      if (store.samples() > 0) return;
      throw UserError(
          fmt::format("no row of {} has a token to {} within --max_seq_length {}; use a larger one", name,
                      purpose, options.max_seq_length));
    });
    return store;
  };
  if (!options.dataset.empty())
    samples.training = read(inputs.records, options.dataset, "tokenising", "train on", samples.key);
  if (options.eval_dataset) {
    std::string key;
    samples.evaluation =
        read(inputs.eval_records, *options.eval_dataset, "tokenising what is evaluated", "evaluate", key);
  } else if (options.eval_split) {
    samples.evaluation = hold_out_samples(run, samples.training);
  }
  return samples;
}

std::unique_ptr<model::Decoder> load_model(const Phases& run, Inputs& inputs,
                                           const cluster::DeviceChoice& device, const std::string& dtype,
                                           cluster::Communicator& communicator) {
  const TrainOptions& options = run.options;
  std::unique_ptr<model::Decoder> decoder;
  run.watchdog.phase("loading the model", kLoadDeadline);
  run.session.together("making room for the model", [&] {
    model::DecoderOptions how;
    how.device = device.cuda ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.index))
                             : at::Device(at::kCPU);
    how.dtype = dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
    how.max_positions = options.max_seq_length;
    how.dropout_seed = static_cast<std::uint64_t>(options.seed);
    decoder = std::make_unique<model::Decoder>(inputs.model, inputs.lora, how);
  });
  if (options.max_seq_length > inputs.model.max_positions) {
    run.display.warning(
        fmt::format("--max_seq_length {} is beyond the {} positions that the model was made for",
                    options.max_seq_length, inputs.model.max_positions));
  }
  std::uint64_t all = 0;
  if (inputs.weights) {
    all = inputs.weights->total_bytes();
  } else {
    for (const model::WeightSlot& slot : decoder->weight_slots())
      all += static_cast<std::uint64_t>(slot.bytes());
  }
  run.display.begin("loading", "bytes");
  std::int64_t tensors = 0;
  const auto progress = [&](std::uint64_t done) {
    run.watchdog.progress();
    if (++tensors % 16 == 0) run.session.together("loading the model", [&] { run.signals.poll(); });
    run.display.progress(done, std::max(all, done));
  };
  if (inputs.weights) {
    train::load_weights(*decoder, *inputs.weights, communicator, progress);
  } else {
    train::fill_dummy_weights(*decoder, static_cast<std::uint64_t>(options.random_state), progress);
  }
  run.display.end("");
  inputs.weights.reset();
  return decoder;
}

void load_adapter(const Phases& run, const Inputs& inputs, const model::Decoder& decoder) {
  run.session.together("reading the adapter", [&] {
    const at::Tensor parameters =
        train::adapter_parameters(decoder.layout(), exporting::read_adapter(*inputs.init_adapter));
    kernels::SegmentScatter(decoder.segments())(parameters.to(decoder.options().device));
  });
}

}  // namespace ranktune::app
