#include "app/bench_command.hpp"

#include <ATen/Parallel.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <boost/program_options.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "app/console_format.hpp"
#include "app/inputs.hpp"
#include "app/options.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "cluster/communicator.hpp"
#include "cluster/devices.hpp"
#include "data/sample_order.hpp"
#include "train/dataset.hpp"
#include "train/loading.hpp"
#include "train/step_bench.hpp"

namespace ranktune::app {
namespace {

namespace po = boost::program_options;

po::options_description description(BenchOptions& bench) {
  po::options_description own("Flags");
  own.add_options()("help,h", "print this text")(
      "workload", po::value(&bench.workloads)->composing()->value_name("WORK"),
      "what a step is: rows (this rank's rows of the dataset, in training's order) or SAMPLESxLENGTH, as in "
      "4x178; may be "
      "given several times")("steps", po::value(&bench.steps)->value_name("N"), "steps in a run [40]")(
      "runs", po::value(&bench.runs)->value_name("N"), "measured runs; the median is printed [5]")(
      "timeline", po::bool_switch(&bench.timeline), "which kernels took the time (GPU only)")(
      "json", po::bool_switch(&bench.json), "print JSON");
  return own;
}

// "4x178"; nothing where the text has another form.
std::optional<std::pair<std::int64_t, std::int64_t>> fixed_shape(const std::string& text) {
  long long samples = 0;
  long long length = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%lldx%lld%c", &samples, &length, &rest) != 2 || samples < 1 || length < 2 ||
      samples > 65536 || length > 16'777'216)
    return std::nullopt;
  return std::pair<std::int64_t, std::int64_t>{samples, length};
}

// Dense bf16 FLOP a second that the maker states for the GPU (NVIDIA's data sheets); 0: not known.
double stated_peak(const std::string& device) {
  constexpr std::pair<const char*, double> kPeaks[] = {
      {"H200", 989e12}, {"H100 PCIe", 756e12}, {"H100", 989e12}, {"A100", 312e12}, {"L40S", 362e12}};
  for (const auto& [name, peak] : kPeaks) {
    if (device.find(name) != std::string::npos) return peak;
  }
  return 0;
}

// Parameters that every token is multiplied with.
double multiplied_parameters(const model::ModelConfig& config) {
  double sum = static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  for (const model::Projection p :
       {model::Projection::q, model::Projection::k, model::Projection::v, model::Projection::o,
        model::Projection::gate, model::Projection::up, model::Projection::down}) {
    const auto [out, in] = model::projection_shape(config, p);
    sum += static_cast<double>(out * in * config.layers);
  }
  return sum;
}

class BenchRun {
 public:
  BenchRun(const cluster::Session& session, TrainOptions options, BenchOptions bench)
      : session_(session), options_(std::move(options)), bench_(std::move(bench)) {}
  int run();

 private:
  void prepare();
  train::BenchWork work_of(const std::string& workload);
  train::BenchSettings settings() const;
  nlohmann::json to_json(const train::BenchFigures& figures) const;
  void print_text(const nlohmann::json& entry) const;

  const cluster::Session& session_;
  TrainOptions options_;
  BenchOptions bench_;
  Inputs inputs_;
  cluster::DeviceChoice device_;
  std::unique_ptr<cluster::Communicator> communicator_;
  std::unique_ptr<model::Decoder> decoder_;
};

void BenchRun::prepare() {
  session_.together("checking the input", [&] {
    std::vector<std::string> problems;
    inputs_ = check_inputs(options_, problems);
    if (!problems.empty()) throw UserError(problems);
  });
  session_.together("choosing devices", [&] {
    cluster::prepare_environment(session_, options_.allow_shared_gpu);
    device_ = cluster::choose_device(session_, options_.device, options_.allow_shared_gpu);
    if (device_.cuda) {
      at::cuda::setCurrentCUDAStream(
          at::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device_.index)));
    }
    communicator_ =
        device_.cuda ? cluster::make_nccl_communicator(session_) : cluster::make_mpi_communicator(session_);
  });
  session_.together("making the model", [&] {
    model::DecoderOptions how;
    how.device = device_.cuda ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device_.index))
                              : at::Device(at::kCPU);
    how.dtype = device_.cuda && options_.dtype != "float32" ? at::kBFloat16 : at::kFloat;
    how.max_positions = options_.max_seq_length;
    for (const std::string& workload : bench_.workloads) {
      if (const auto shape = fixed_shape(workload))
        how.max_positions = std::max(how.max_positions, shape->second);
    }
    decoder_ = std::make_unique<model::Decoder>(inputs_.model, inputs_.lora, how);
    const auto nothing = [](std::uint64_t) {};
    // Timing needs no trained weights; files are read where they are, so that loading is part of what was
    // tried.
    if (inputs_.weights) {
      train::load_weights(*decoder_, *inputs_.weights, *communicator_, nothing);
    } else {
      train::fill_dummy_weights(*decoder_, 1, nothing);
    }
  });
}

train::BenchWork BenchRun::work_of(const std::string& workload) {
  if (const auto shape = fixed_shape(workload))
    return train::fixed_work(shape->first, shape->second, bench_.steps, inputs_.model.vocab_size);
  const data::TokenizeOptions how =
      tokenize_options(options_, inputs_.model_folder, inputs_.records, session_.allowed_cpus());
  train::BenchWork work;
  work.name = "rows";
  work.store =
      train::tokenised_dataset(session_, inputs_.records, *inputs_.tokenizer, how,
                               cache_directory(std::filesystem::path(options_.output_dir) / ".cache"),
                               [](std::int64_t) {})
          .store;
  const std::int64_t batch = options_.per_device_train_batch_size * options_.gradient_accumulation_steps;
  const data::SampleOrder order(work.store, batch * session_.world_size(),
                                static_cast<std::uint64_t>(options_.seed), options_.shuffle,
                                pack_length_of(options_));
  for (std::int64_t step = 0; step < bench_.steps; ++step) {
    work.steps.push_back(order.samples(step, session_.rank(), session_.world_size()));
  }
  return work;
}

train::BenchSettings BenchRun::settings() const {
  train::BenchSettings settings;
  settings.runs = static_cast<int>(bench_.runs);
  settings.timeline = bench_.timeline && device_.cuda;
  settings.optimizer.eight_bit = options_.optim == "adamw_8bit";
  settings.recompute = recompute_of(options_);
  settings.max_tokens_per_pass = options_.max_tokens_per_pass.value_or(0);
  settings.memory_limit = memory_limit_of(options_);
  return settings;
}

nlohmann::json BenchRun::to_json(const train::BenchFigures& figures) const {
  constexpr double kGibibyte = 1 << 30;
  nlohmann::json entry{{"workload", figures.name},
                       {"model", options_.model_name},
                       {"device", device_.name},
                       {"driver", device_.driver},
                       {"torch", TORCH_VERSION},
                       {"communicator", communicator_->name()},
                       {"ranks", session_.world_size()},
                       {"steps_per_run", figures.steps},
                       {"steps_per_second", 1 / figures.step_seconds},
                       {"step_milliseconds", figures.step_seconds * 1e3},
                       {"spread", figures.spread},
                       {"tokens_per_step", figures.tokens},
                       {"tokens_per_second", figures.tokens / figures.step_seconds},
                       {"host_share", figures.host_share},
                       {"first_step_seconds", figures.first_step_seconds},
                       {"peak_gib", static_cast<double>(figures.peak_bytes) / kGibibyte},
                       {"reserved_gib", static_cast<double>(figures.reserved_bytes) / kGibibyte},
                       {"plan", figures.plan.reason}};
  if (const double peak = stated_peak(device_.name); peak > 0) {
    entry["mfu"] = 4 * multiplied_parameters(inputs_.model) * figures.tokens / figures.step_seconds / peak;
    entry["stated_peak_tflops"] = peak * 1e-12;
  }
  if (figures.timeline.kernels.empty()) return entry;
  const auto steps = static_cast<double>(figures.steps);
  std::map<std::string, std::pair<double, double>> classes;  // milliseconds, launches
  auto& kernels = entry["kernels"];
  for (const train::KernelTime& kernel : figures.timeline.kernels) {
    auto& sum = classes[std::string(train::kernel_class(kernel.name))];
    sum.first += kernel.seconds * 1e3 / steps;
    sum.second += static_cast<double>(kernel.launches) / steps;
    kernels.push_back({{"name", kernel.name},
                       {"milliseconds", kernel.seconds * 1e3 / steps},
                       {"launches", static_cast<double>(kernel.launches) / steps}});
  }
  for (const auto& [name, sum] : classes) {
    entry["classes"].push_back({{"name", name}, {"milliseconds", sum.first}, {"launches", sum.second}});
  }
  entry["busy_milliseconds"] = figures.timeline.busy_seconds * 1e3 / steps;
  return entry;
}

void BenchRun::print_text(const nlohmann::json& entry) const {
  const auto number = [&](const char* key) { return entry.at(key).get<double>(); };
  std::printf(
      "%s\n",
      fmt::format("{:<12} {:7.2f} it/s  {:8.2f} ms +-{:.1f} %  {:8.0f} tokens/s  {:.0f} tokens a step{}  "
                  "{:.2f} GiB ({:.2f} reserved)  host {:.1f} %  first step {:.2f} s  {}",
                  entry["workload"].get<std::string>(), number("steps_per_second"),
                  number("step_milliseconds"), number("spread") * 50, number("tokens_per_second"),
                  number("tokens_per_step"),
                  entry.contains("mfu") ? fmt::format("  MFU {:.1f} %", number("mfu") * 100) : "",
                  number("peak_gib"), number("reserved_gib"), number("host_share") * 100,
                  number("first_step_seconds"), entry["plan"].get<std::string>())
          .c_str());
  if (!entry.contains("classes")) return;
  std::printf("  GPU busy %.2f ms of a step\n", number("busy_milliseconds"));
  for (const char* table : {"classes", "kernels"}) {
    int rows = 0;
    for (const auto& row : entry[table]) {
      if (++rows > 40) break;
      std::printf("  %9.3f ms %8.1f x  %s\n", row["milliseconds"].get<double>(),
                  row["launches"].get<double>(), row["name"].get<std::string>().substr(0, 150).c_str());
    }
  }
}

int BenchRun::run() {
  const c10::InferenceMode no_autograd;
  prepare();
  if (session_.is_root() && !bench_.json) {
    std::printf(
        "%s\n",
        fmt::format("{} on {}{}, {} rank{}, LibTorch {}, {}", options_.model_name, device_.name,
                    device_.driver.empty() ? "" : " (driver " + device_.driver + ")", session_.world_size(),
                    session_.world_size() == 1 ? "" : "s", TORCH_VERSION, communicator_->name())
            .c_str());
  }
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& workload : bench_.workloads) {
    const train::BenchWork work = work_of(workload);
    nlohmann::json entry = to_json(train::bench_steps(work, *decoder_, *communicator_, settings()));
    if (session_.is_root() && !bench_.json) print_text(entry);
    std::fflush(stdout);
    all.push_back(std::move(entry));
  }
  if (session_.is_root() && bench_.json) std::printf("%s\n", all.dump(1).c_str());
  decoder_.reset();
  communicator_->close();
  return 0;
}

}  // namespace

BenchCommand parse_bench_options(const std::vector<std::string>& arguments) {
  BenchCommand command;
  BenchOptions bench;
  bench.workloads.clear();
  try {
    const po::options_description own = description(bench);
    const auto parsed =
        po::command_line_parser(arguments)
            .options(own)
            .style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing)
            .allow_unregistered()
            .run();
    po::variables_map values;
    po::store(parsed, values);
    po::notify(values);
    command.help = values.count("help") > 0;
    command.train_arguments = po::collect_unrecognized(parsed.options, po::include_positional);
  } catch (const po::error& error) {
    command.problems.push_back(std::string("ranktune bench: ") + error.what());
  }
  if (bench.workloads.empty()) bench.workloads = {"rows"};
  for (const std::string& workload : bench.workloads) {
    if (workload != "rows" && !fixed_shape(workload))
      command.problems.push_back("--workload '" + workload +
                                 "' is neither rows nor SAMPLESxLENGTH, as in 4x178");
  }
  if (bench.steps < 1 || bench.runs < 1)
    command.problems.emplace_back("--steps and --runs must be at least 1");
  command.bench = std::move(bench);
  return command;
}

std::string bench_help() {
  BenchOptions bench;
  std::ostringstream text;
  text << "Usage: ranktune bench [--workload WORK]... [FLAGS] [FLAGS OF ranktune train]\n\n"
          "Times optimizer steps of what ranktune train would do with the same flags.\n\n"
          "Example:\n  ranktune bench --model_name Qwen/Qwen3-8B --load_format dummy --workload rows "
          "--workload 4x178\n\n"
       << description(bench);
  return text.str();
}

int run_bench(const cluster::Session& session, const BenchCommand& command) {
  const ParseResult parsed = parse_train_options(command.train_arguments);
  std::vector<std::string> problems = command.problems;
  problems.insert(problems.end(), parsed.problems.begin(), parsed.problems.end());
  session.together("reading the command line", [&] {
    if (!problems.empty()) throw UserError(problems);
  });
  return BenchRun(session, parsed.options, command.bench).run();
}

}  // namespace ranktune::app
