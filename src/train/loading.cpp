#include "train/loading.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/error.hpp"
#include "kernels/lora_init.hpp"

namespace ranktune::train {
namespace {

at::ScalarType scalar_type(const std::string& dtype, const std::string& name) {
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "F32") return at::kFloat;
  throw UserError("tensor \"" + name + "\" has type " + dtype + "; F32, F16 and BF16 can be read");
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

// Tensors of the layers that config.json says nothing of (biases, scales of quantised weights, more layers):
// the model in the folder is another one. Old files hold rotary frequencies, which are computed here.
void refuse_other_tensors(const model::WeightFiles& files, const std::set<std::string>& expected,
                          std::vector<std::string>& problems) {
  for (const std::string& name : files.names()) {
    if (name.starts_with("model.layers.") && !expected.contains(name) &&
        !name.ends_with("rotary_emb.inv_freq")) {
      problems.push_back("tensor \"" + name + "\" has no place in the model that config.json describes");
    }
  }
}

// A head beside tied embeddings must be the same matrix.
void refuse_untied_head(const model::ModelConfig& config, const model::WeightFiles& files,
                        std::vector<std::string>& problems) {
  if (!config.tied_embeddings || !files.contains("lm_head.weight")) return;
  const auto head = files.view("lm_head.weight");
  const auto embedding = files.view("model.embed_tokens.weight");
  if (head.dtype != embedding.dtype || !std::ranges::equal(head.bytes, embedding.bytes)) {
    problems.emplace_back(
        "tensor \"lm_head.weight\" differs from \"model.embed_tokens.weight\", but config.json has "
        "tie_word_embeddings = true; set it to false to keep both");
  }
}

}  // namespace

std::vector<model::WeightSlot> weight_shapes(const model::ModelConfig& config) {
  model::DecoderOptions options;
  options.device = at::kMeta;
  options.max_positions = 1;
  model::LoraConfig none;
  none.targets.fill(false);
  return model::Decoder(config, none, options).weight_slots();
}

at::Tensor mapped_tensor(const model::WeightView& view, const std::string& name) {
  return at::from_blob(const_cast<std::byte*>(view.bytes.data()), view.shape, scalar_type(view.dtype, name));
}

void check_weights(const model::ModelConfig& config, const model::WeightFiles& files) {
  std::vector<std::string> problems;
  std::set<std::string> expected;
  for (const model::WeightSlot& slot : weight_shapes(config)) {
    expected.insert(slot.name);
    try {
      const model::WeightView view = files.view(slot.name);
      scalar_type(view.dtype, slot.name);
      if (slot.destination.sizes() != at::IntArrayRef(view.shape)) {
        throw UserError("tensor \"" + slot.name + "\" has shape " + shape_text(view.shape) +
                        ", but config.json asks for " + shape_text(slot.destination.sizes()));
      }
    } catch (const UserError& error) {
      problems.emplace_back(error.what());
    }
  }
  refuse_other_tensors(files, expected, problems);
  if (problems.empty()) refuse_untied_head(config, files, problems);
  if (problems.size() > 5) problems.resize(5);  // enough to see what is wrong
  if (!problems.empty()) throw UserError(problems);
}

void load_weights(model::Decoder& decoder, const model::WeightFiles& files,
                  cluster::Communicator& communicator, const LoadProgress& progress) {
  const at::Device device = decoder.options().device;
  void* stream = device.is_cuda() ? static_cast<void*>(at::cuda::getCurrentCUDAStream().stream()) : nullptr;
  std::uint64_t loaded = 0;
  int index = 0;
  for (model::WeightSlot& slot : decoder.weight_slots()) {
    const model::WeightView view = files.view(slot.name);
    const at::Tensor mapped = mapped_tensor(view, slot.name);
    const int owner = index++ % communicator.world_size();
    at::Tensor staging;
    if (owner == communicator.rank()) {
      // A broadcast may not write to the file's map, and the device needs a copy anyway.
      staging = device.is_cuda() ? mapped.to(device) : mapped;
    } else {
      staging = at::empty(view.shape, mapped.options().device(device));
    }
    communicator.broadcast(staging.data_ptr(), view.bytes.size(), owner, stream);
    slot.destination.copy_(staging);
    loaded += view.bytes.size();
    if (progress) progress(loaded);
  }
  communicator.synchronize(stream);
}

void fill_dummy_weights(model::Decoder& decoder, std::uint64_t seed, const LoadProgress& progress) {
  std::uint64_t filled = 0;
  std::uint32_t stream = 0;
  for (model::WeightSlot& slot : decoder.weight_slots()) {
    if (slot.kind != model::WeightSlot::Kind::matrix) {  // as Transformers begins: norms 1, biases 0
      slot.destination.fill_(slot.kind == model::WeightSlot::Kind::norm ? 1.0 : 0.0);
    } else {
      kernels::dummy_normal(slot.destination, static_cast<float>(decoder.config().initializer_range), seed,
                            stream);
    }
    ++stream;
    filled += slot.destination.nbytes();
    if (progress) progress(filled);
  }
}

at::Tensor adapter_parameters(const model::FlatLayout& layout, const exporting::Adapter& adapter) {
  at::Tensor host = at::empty({layout.elements}, at::kFloat).zero_();
  std::size_t used = 0;
  for (const model::FlatTensor& tensor : layout.tensors) {
    const auto found = std::find_if(adapter.tensors.begin(), adapter.tensors.end(),
                                    [&](const exporting::AdapterTensor& t) { return t.name == tensor.name; });
    if (found == adapter.tensors.end())
      throw UserError("the adapter holds no tensor \"" + tensor.name + "\"");
    if (found->shape != std::vector<std::int64_t>{tensor.rows, tensor.columns}) {
      throw UserError(
          fmt::format("the adapter's tensor \"{}\" does not have the shape [{}, {}] that the model needs",
                      tensor.name, tensor.rows, tensor.columns));
    }
    std::copy(found->values.begin(), found->values.end(), host.data_ptr<float>() + tensor.offset);
    ++used;
  }
  if (used != adapter.tensors.size()) {
    throw UserError(fmt::format("the adapter holds {} tensors, but the model has a place for {} of them",
                                adapter.tensors.size(), used));
  }
  return host;
}

}  // namespace ranktune::train
