// Runs one forward and backward pass and writes what came out, for comparison with Transformers and PEFT:
//   model_probe MODEL_FOLDER ADAPTER_FOLDER SAMPLES.json OUT.safetensors [DEVICE [DTYPE [RECOMPUTE [4bit]]]]
// SAMPLES.json: a list of {"ids": [token ids], "first_position": 0}, laid end to end as one pass. OUT: logits
// [tokens, vocab], nll_sum [1], and the gradient of the sum of the token NLLs for each trained matrix under
// PEFT's name.

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "cluster/communicator.hpp"
#include "cluster/session.hpp"
#include "data/batch.hpp"
#include "export/adapter.hpp"
#include "export/safetensors_writer.hpp"
#include "model/decoder.hpp"
#include "model/weights.hpp"
#include "train/loading.hpp"

namespace {

using namespace ranktune;

model::LoraConfig lora_of(const exporting::AdapterConfig& config) {
  model::LoraConfig lora;
  lora.r = config.r;
  lora.alpha = config.lora_alpha;
  lora.rslora = config.use_rslora;
  for (std::size_t i = 0; i < model::kProjectionNames.size(); ++i) {
    const auto& modules = config.target_modules;
    lora.targets[i] = std::find(modules.begin(), modules.end(), model::kProjectionNames[i]) != modules.end();
  }
  return lora;
}

void run(const std::vector<std::string>& arguments) {
  const c10::InferenceMode no_autograd;
  const std::string device = arguments.size() > 4 ? arguments[4] : "cpu";
  const std::string dtype = arguments.size() > 5 ? arguments[5] : "float32";
  const bool recompute = arguments.size() > 6 && arguments[6] == "recompute";

  const exporting::Adapter adapter = exporting::read_adapter(arguments[1]);
  model::ModelConfig config = model::read_model_config(arguments[0]);
  const model::WeightFiles files(arguments[0]);
  if (arguments.size() > 7 && arguments[7] == "4bit") model::quantise_to_four_bits(config, arguments[0]);
  train::find_whole_modules(config, files);
  data::TokenStore store;
  std::vector<std::int64_t> samples;
  std::vector<std::int32_t> first_positions;
  for (const auto& sample : nlohmann::json::parse(read_file(arguments[2]))) {
    const auto ids = sample.at("ids").get<std::vector<std::int32_t>>();
    store.ids.insert(store.ids.end(), ids.begin(), ids.end());
    samples.push_back(store.samples());
    store.offsets.push_back(static_cast<std::int64_t>(store.ids.size()));
    first_positions.insert(first_positions.end(), ids.size(),
                           sample.at("first_position").get<std::int32_t>());
  }
  auto passes = data::make_passes(store, samples, 0);
  data::PassBatch& batch = passes.front();
  for (std::size_t i = 0; i < first_positions.size(); ++i) batch.positions[i] += first_positions[i];

  model::DecoderOptions options;
  options.device = at::Device(device);
  options.dtype = dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  options.max_positions = 1 + *std::max_element(batch.positions.begin(), batch.positions.end());
  model::Decoder decoder(config, lora_of(adapter.config), options);
  const cluster::Session session;
  const auto communicator = options.device.is_cuda() ? cluster::make_nccl_communicator(session)
                                                     : cluster::make_mpi_communicator(session);
  train::check_weights(config, files);
  train::load_weights(decoder, files, *communicator, {});

  at::Tensor master = at::zeros({decoder.layout().elements}, at::kFloat);
  for (const model::FlatTensor& tensor : decoder.layout().tensors) {
    for (const auto& given : adapter.tensors) {
      if (given.name == tensor.name) {
        std::copy(given.values.begin(), given.values.end(), master.data_ptr<float>() + tensor.offset);
      }
    }
  }
  kernels::SegmentScatter scatter(decoder.segments());
  scatter(master.to(options.device));
  decoder.reserve(batch.tokens(), recompute ? decoder.config().layers : 0);

  const model::DevicePass pass(batch, model::exact_shape(batch), options.device);
  std::map<std::string, at::Tensor> results;
  results["logits"] = decoder.logits(pass).to(at::kCPU);
  const auto on_device = at::TensorOptions().device(options.device);
  const at::Tensor gradient = at::zeros({decoder.layout().elements}, on_device.dtype(at::kFloat));
  at::Tensor nll_sum = at::zeros({1}, on_device.dtype(at::kDouble));
  decoder.forward_backward(pass, at::zeros({1}, on_device.dtype(at::kLong)), gradient, nll_sum);
  const at::Tensor host = gradient.to(at::kCPU);
  for (const model::FlatTensor& tensor : decoder.layout().tensors) {
    results[tensor.name] = host.narrow(0, tensor.offset, tensor.rows * tensor.columns)
                               .view({tensor.rows, tensor.columns})
                               .contiguous();
  }
  results["nll_sum"] = nll_sum.to(at::kCPU).to(at::kFloat);

  std::vector<exporting::TensorEntry> entries;
  for (const auto& [name, tensor] : results) entries.push_back({name, "F32", tensor.sizes().vec()});
  exporting::write_safetensors(arguments[3], entries, [&](const auto& entry, const exporting::Sink& sink) {
    const at::Tensor& tensor = results.at(entry.name);
    sink({static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()});
  });
  communicator->close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fputs(
        "usage: model_probe MODEL ADAPTER SAMPLES.json OUT.safetensors [DEVICE [DTYPE [recompute [4bit]]]]\n",
        stderr);
    return 2;
  }
  try {
    run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_probe: %s\n", error.what());
    return 1;
  }
  return 0;
}
