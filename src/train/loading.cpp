#include "train/loading.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>

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

// What bitsandbytes writes beside the codes of a 4-bit tensor, as JSON in a tensor of bytes.
struct Nf4State {
  double offset = 0;
  at::ScalarType type = at::kBFloat16;  // what was quantised, and what decoding rounds to
};
const std::string kNf4State = ".quant_state.bitsandbytes__nf4";

nlohmann::json nf4_state_of(const model::WeightFiles& files, const std::string& name) {
  const auto bytes = files.view(name + kNf4State).bytes;
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  auto object = nlohmann::json::parse(text, text + bytes.size(), nullptr, false);
  if (!object.is_object()) throw UserError("tensor \"" + name + kNf4State + "\" is not a JSON object");
  return object;
}

Nf4State read_nf4_state(const model::WeightFiles& files, const std::string& name) {
  const nlohmann::json object = nf4_state_of(files, name);
  static const std::map<std::string, at::ScalarType> types{
      {"float32", at::kFloat}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}};
  return {object.at("nested_offset").get<double>(), types.at(object.at("dtype").get<std::string>())};
}

// Throws UserError where the files do not hold the matrix as bitsandbytes writes it. Returns the names of all
// tensors that belong to it.
std::vector<std::string> check_nf4_files(const model::WeightFiles& files, const std::string& name,
                                         const kernels::Nf4Matrix& matrix) {
  const auto elements = [](const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); };
  const std::vector<std::tuple<std::string, std::string, std::size_t>> parts{
      {"", "U8", elements(matrix.packed)},
      {".absmax", "U8", elements(matrix.absmax)},
      {".nested_absmax", "F32", 4 * elements(matrix.nested_absmax)},
      {".nested_quant_map", "F32", 4 * elements(matrix.absmax_map)},
      {".quant_map", "F32", 4 * kernels::kNf4Values.size()}};
  std::vector<std::string> names{name + kNf4State};
  for (const auto& [part, dtype, bytes] : parts) {
    const model::WeightView view = files.view(name + part);
    if (view.dtype != dtype || view.bytes.size() != bytes) {
      throw UserError(fmt::format(
          "tensor \"{}{}\" has type {} and {} bytes, but 4-bit weights of {} need {} and {}", name, part,
          view.dtype, view.bytes.size(), shape_text({matrix.rows, matrix.columns}), dtype, bytes));
    }
    names.push_back(name + part);
  }
  if (std::memcmp(files.view(name + ".quant_map").bytes.data(), kernels::kNf4Values.data(),
                  sizeof(kernels::kNf4Values)) != 0) {
    throw UserError("tensor \"" + name + ".quant_map\" holds other values than NF4's");
  }
  const nlohmann::json state = nf4_state_of(files, name);
  const nlohmann::json wanted{{"quant_type", "nf4"},
                              {"blocksize", kernels::kNf4Block},
                              {"nested_blocksize", kernels::kNf4NestedBlock},
                              {"nested_dtype", "float32"},
                              {"shape", {matrix.rows, matrix.columns}}};
  for (const auto& [key, value] : wanted.items()) {
    if (!state.contains(key) || state.at(key) != value) {
      throw UserError(fmt::format("tensor \"{}{}\" has {} = {}, but only {} can be read", name, kNf4State,
                                  key, state.contains(key) ? state.at(key).dump() : "nothing", value.dump()));
    }
  }
  const auto type = state.value("dtype", "");
  if (!state.contains("nested_offset") || !state.at("nested_offset").is_number() ||
      (type != "float32" && type != "float16" && type != "bfloat16")) {
    throw UserError("tensor \"" + name + kNf4State +
                    "\" lacks a number nested_offset or a floating-point dtype");
  }
  return names;
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

void find_whole_modules(model::ModelConfig& config, const model::WeightFiles& files) {
  if (!config.prequantised) return;
  constexpr std::string_view kEnd = ".weight";
  for (const std::string& name : files.names()) {
    if (name.ends_with(kEnd) && !files.contains(name + ".absmax"))
      config.not_quantised.insert(name.substr(0, name.size() - kEnd.size()));
  }
}

void check_weights(const model::ModelConfig& config, const model::WeightFiles& files) {
  model::DecoderOptions options;
  options.device = at::kMeta;
  options.max_positions = 1;
  model::LoraConfig none;
  none.targets.fill(false);
  model::Decoder shapes(config, none, options);  // on the meta device: shapes without memory
  std::vector<std::string> problems;
  std::set<std::string> expected;
  for (const model::WeightSlot& slot : shapes.weight_slots()) {
    expected.insert(slot.name);
    try {
      const model::WeightView view = files.view(slot.name);
      if (slot.nf4 != nullptr && config.prequantised) {
        for (const std::string& part : check_nf4_files(files, slot.name, *slot.nf4)) expected.insert(part);
        continue;
      }
      scalar_type(view.dtype, slot.name);
      if (at::IntArrayRef(slot.sizes()) != at::IntArrayRef(view.shape)) {
        throw UserError("tensor \"" + slot.name + "\" has shape " + shape_text(view.shape) +
                        ", but config.json asks for " + shape_text(slot.sizes()));
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
  // A tensor of the files on the device of every rank.
  const auto shared = [&](const std::string& name, int owner) {
    const model::WeightView view = files.view(name);
    const auto type = view.dtype == "U8" ? at::kByte : scalar_type(view.dtype, name);
    at::Tensor staging;
    if (owner == communicator.rank()) {
      staging = at::from_blob(const_cast<std::byte*>(view.bytes.data()), view.shape, type);
      // A broadcast may not write to the file's map, and the device needs a copy anyway.
      if (device.is_cuda()) staging = staging.to(device);
    } else {
      staging = at::empty(view.shape, at::TensorOptions().dtype(type).device(device));
    }
    communicator.broadcast(staging.data_ptr(), view.bytes.size(), owner, stream);
    loaded += view.bytes.size();
    return staging;
  };
  for (model::WeightSlot& slot : decoder.weight_slots()) {
    const int owner = index++ % communicator.world_size();
    if (slot.nf4 != nullptr && decoder.config().prequantised) {
      kernels::Nf4Matrix& matrix = *slot.nf4;
      const auto take = [&](at::Tensor& destination, const std::string& part) {
        destination.copy_(shared(slot.name + part, owner).view(destination.sizes()));
      };
      take(matrix.packed, "");
      take(matrix.absmax, ".absmax");
      take(matrix.nested_absmax, ".nested_absmax");
      take(matrix.absmax_map, ".nested_quant_map");
      const Nf4State state = read_nf4_state(files, slot.name);
      matrix.offset.fill_(state.offset);
      matrix.rounded_to = state.type;
    } else {
      slot.store(shared(slot.name, owner), decoder.options().dtype);
    }
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
      const auto deviation = static_cast<float>(decoder.config().initializer_range);
      const model::DecoderOptions& options = decoder.options();
      if (slot.nf4 == nullptr && slot.destination.device() == options.device) {
        kernels::dummy_normal(slot.destination, deviation, seed, stream);
      } else {
        at::Tensor values = at::empty(slot.sizes(), at::TensorOptions(options.dtype).device(options.device));
        kernels::dummy_normal(values, deviation, seed, stream);
        slot.store(values, options.dtype);
      }
    }
    ++stream;
    filled += static_cast<std::uint64_t>(slot.bytes());
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
