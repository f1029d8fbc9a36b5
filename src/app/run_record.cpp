#include "app/run_record.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>
#include <torch/headeronly/version.h>

#include <ctime>
#include <set>

#include "base/file.hpp"
#include "base/version.hpp"

namespace ranktune::app {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts));
  return text;
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

std::string cuda_version() {
  int version = 0;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess) return "unknown";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> library_versions() {
  return {{"ranktune", kVersion},           {"git_revision", kGitRevision},  {"libtorch", TORCH_VERSION},
          {"cuda_runtime", cuda_version()}, {"mpi", cluster::mpi_library()}, {"hdf5", hdf5_version()}};
}

nlohmann::json recipe_of(const TrainOptions& options, const Inputs& inputs, const std::string& dataset_key,
                         const std::string& dtype, std::int64_t global_batch, std::int64_t total_steps) {
  nlohmann::json recipe = {
      {"model", options.model_name},
      {"model_config", content_hash(read_file(inputs.model_folder / "config.json"))},
      {"model_bytes", inputs.weights ? static_cast<std::int64_t>(inputs.weights->total_bytes()) : 0},
      {"load_format", options.load_format},
      {"dtype", dtype},
      {"dataset", dataset_key},
      {"global_batch_size", global_batch},
      {"r", inputs.lora.r},
      {"lora_alpha", inputs.lora.alpha},
      {"lora_dropout", inputs.lora.dropout},
      {"use_rslora", inputs.lora.rslora},
      {"target_modules", inputs.adapter.target_modules},
      {"random_state", options.random_state},
      {"learning_rate", options.learning_rate},
      {"lr_scheduler_type", options.lr_scheduler_type},
      {"warmup_steps", warmup_steps_of(options, total_steps)},
      {"weight_decay", options.weight_decay},
      {"max_grad_norm", options.max_grad_norm},
      {"seed", options.seed},
      {"shuffle", options.shuffle},
      {"use_gradient_checkpointing", options.use_gradient_checkpointing},
      {"max_tokens_per_pass", options.max_tokens_per_pass.value_or(0)}};
  // What is held out is not trained on. How often it is evaluated may change.
  if (options.eval_split) recipe["eval_split"] = *options.eval_split;
  // A slot is a pack then; its length counts even where no sample was cut.
  if (options.packing) recipe["packing"] = options.max_seq_length;
  // A constant rate does not know where it ends, so such a run may be made longer.
  const bool knows_its_end = options.lr_scheduler_type == "linear" || options.lr_scheduler_type == "cosine";
  if (knows_its_end) recipe["max_steps"] = total_steps;
  // fp32 moments are the rule, of which earlier checkpoints say nothing.
  if (options.optim == "adamw_8bit") recipe["optim"] = options.optim;
  if (inputs.model.four_bit) recipe["load_in_4bit"] = true;
  return recipe;
}

nlohmann::json bits_of(const cluster::Session& session, const cluster::DeviceChoice& device,
                       const cluster::Communicator& communicator, const TrainOptions& options, int threads) {
  nlohmann::json bits = {{"world_size", session.world_size()},
                         {"per_device_train_batch_size", options.per_device_train_batch_size},
                         {"gradient_accumulation_steps", options.gradient_accumulation_steps},
                         {"device", device.name},
                         {"multiprocessors", device.multiprocessors},
                         {"threads", threads},
                         {"communicator", communicator.name()}};
  for (const auto& [name, version] : library_versions()) {
    if (name != "git_revision") bits[name] = version;
  }
  return bits;
}

std::vector<std::string> differences(const nlohmann::json& was, const nlohmann::json& is) {
  std::set<std::string> names;
  for (const auto& [name, value] : was.items()) names.insert(name);
  for (const auto& [name, value] : is.items()) names.insert(name);
  std::vector<std::string> sentences;
  for (const std::string& name : names) {
    const nlohmann::json before = was.value(name, nlohmann::json());
    const nlohmann::json now = is.value(name, nlohmann::json());
    if (before != now) sentences.push_back(fmt::format("{} was {}, is {}", name, before.dump(), now.dump()));
  }
  return sentences;
}

store::Provenance provenance_of(const cluster::Session& session, const cluster::DeviceChoice& device,
                                const cluster::Communicator& communicator, const TrainOptions& options,
                                const std::vector<std::string>& gpus_of_ranks,
                                const std::string& dataset_digest, const std::string& command_line,
                                const nlohmann::json& recipe) {
  const cluster::SlurmFacts slurm = cluster::slurm_facts();
  store::Provenance provenance;
  provenance.text = {{"software", "ranktune"},
                     {"software_version", kVersion},
                     {"date", utc_now()},
                     {"command_line", command_line},
                     {"configuration", to_json(options).dump()},
                     {"recipe", recipe.dump()},
                     {"hosts", fmt::format("{}", fmt::join(session.hosts(), ","))},
                     {"devices", fmt::format("{}", fmt::join(gpus_of_ranks, ","))},
                     {"device_driver", device.driver},
                     {"communicator", communicator.name()},
                     {"dataset_digest", dataset_digest},
                     {"slurm_job_id", slurm.job_id},
                     {"slurm_restart_count", slurm.restart_count}};
  for (const auto& [name, version] : library_versions()) {
    provenance.text.emplace_back(name == "git_revision" ? name : name + "_version", version);
  }
  provenance.integers = {{"seed", options.seed},
                         {"world_size", session.world_size()},
                         {"nodes", session.nodes()},
                         {"per_device_train_batch_size", options.per_device_train_batch_size},
                         {"gradient_accumulation_steps", options.gradient_accumulation_steps}};
  return provenance;
}

}  // namespace ranktune::app
