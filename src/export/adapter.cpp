#include "export/adapter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include "base/error.hpp"
#include "base/safetensors.hpp"
#include "export/adapter_config.hpp"
#include "export/output_file.hpp"
#include "export/safetensors_writer.hpp"

namespace ranktune::exporting {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr std::array kTokenizerFiles{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                     "chat_template.jinja"};

void write_weights(const fs::path& path, const std::vector<AdapterTensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& tensor : tensors) {
    entries.push_back({tensor.name, "F32", tensor.shape});
    RT_CHECK(entries.back().bytes() == tensor.values.size() * sizeof(float),
             "shape and values of " + tensor.name + " differ in size");
  }
  std::size_t next = 0;
  write_safetensors(path, entries, [&](const TensorEntry&, const Sink& sink) {
    sink(std::as_bytes(std::span(tensors[next++].values)));
  });
}

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  if (from.empty()) return;
  for (const char* name : kTokenizerFiles) {
    std::error_code error;
    if (!fs::exists(from / name, error) || fs::equivalent(from / name, to / name, error)) continue;
    if (!fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing, error)) {
      throw Failure(
          fmt::format("cannot copy {} to {}: {}", (from / name).string(), to.string(), error.message()));
    }
  }
}

// IEEE half precision: 1 sign, 5 exponent and 10 mantissa bits.
float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa x 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 0xFFU : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23U) | (mantissa << 13U));
}

float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

// Any of the three float types as fp32. The bytes in the file have no alignment.
std::vector<float> as_float(std::span<const std::byte> bytes, const std::string& dtype) {
  std::vector<float> values(bytes.size() / dtype_bytes(dtype));
  if (dtype == "F32") {
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
    values[i] = dtype == "F16" ? half_to_float(bits) : bfloat16_to_float(bits);
  }
  return values;
}

// "base_model.model.model.layers.N.BLOCK.PROJECTION.lora_A.weight" taken apart.
struct TensorName {
  std::string module;      // all before ".lora_"
  std::string projection;  // "q_proj"
  bool is_a = false;
};

std::optional<TensorName> parse_name(const std::string& name) {
  static const std::regex kForm(
      R"((base_model\.model\.model\.layers\.[0-9]{1,6}\.([a-z_]{1,16})\.([a-z_]{1,16}))\.lora_([AB])\.weight)");
  std::smatch match;
  if (name.size() > 200 || !std::regex_match(name, match, kForm)) return std::nullopt;
  const auto known =
      std::any_of(projections().begin(), projections().end(), [&](const Projection& projection) {
        return match[2].str() == projection.block && match[3].str() == projection.name;
      });
  if (!known) return std::nullopt;
  return TensorName{match[1], match[3], match[4] == "A"};
}

// Collects what is wrong with the tensors of a file.
class TensorChecker {
 public:
  TensorChecker(const AdapterConfig& config, std::string path) : config_(config), path_(std::move(path)) {}

  void check(const std::string& name, const SafetensorsEntry& entry) {
    const auto parsed = parse_name(name);
    if (!parsed) return problem(name, "is no LoRA matrix of the seven projections");
    const auto& targets = config_.target_modules;
    if (std::find(targets.begin(), targets.end(), parsed->projection) == targets.end()) {
      return problem(name, "belongs to none of the target_modules of adapter_config.json");
    }
    if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
      return problem(name, fmt::format("has dtype {}, expected is F32, F16 or BF16", entry.dtype));
    }
    // A is [r, in], B is [out, r].
    if (entry.shape.size() != 2 || entry.shape[parsed->is_a ? 0 : 1] != config_.r ||
        entry.begin == entry.end) {
      return problem(name, fmt::format("has the shape [{}], which contradicts r = {}",
                                       fmt::join(entry.shape, ", "), config_.r));
    }
    halves_[parsed->module] |= parsed->is_a ? 1U : 2U;
    found_.insert(parsed->projection);
  }

  void finish() {
    for (const auto& [module, halves] : halves_) {
      if (halves != 3) problem(module, fmt::format("has no lora_{}", halves == 1 ? 'B' : 'A'));
    }
    for (const auto& target : config_.target_modules) {
      if (!found_.contains(target)) problem(target, "is in target_modules but has no tensors");
    }
    if (problems_.size() > 10) {
      const std::size_t more = problems_.size() - 10;
      problems_.resize(10);
      problems_.push_back(fmt::format("{}: {} more problems of this kind", path_, more));
    }
    if (!problems_.empty()) throw UserError(problems_);
  }

 private:
  void problem(const std::string& name, const std::string& what) {
    std::string printable = name.substr(0, 120);
    std::replace_if(
        printable.begin(), printable.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
    problems_.push_back(fmt::format("{}: {} {}", path_, printable, what));
  }

  const AdapterConfig& config_;
  std::string path_;
  std::map<std::string, unsigned> halves_;
  std::set<std::string> found_;
  std::vector<std::string> problems_;
};

}  // namespace

void write_adapter(const fs::path& folder, const Adapter& adapter, const fs::path& tokenizer_folder) {
  write_weights(folder / kWeightsFile, adapter.tensors);
  write_text_file(folder / kConfigFile, config_text(adapter.config));
  copy_tokenizer(tokenizer_folder, folder);
}

Adapter read_adapter(const fs::path& folder) {
  Adapter adapter{read_adapter_config(folder), {}};
  const fs::path path = folder / kWeightsFile;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    const bool pickled = fs::exists(folder / "adapter_model.bin", error);
    throw UserError(fmt::format(
        "{} has no {}{}", folder.string(), kWeightsFile,
        pickled ? "; adapter_model.bin is a pickle, which is never loaded: save the adapter again "
                  "with safe_serialization"
                : ""));
  }
  const SafetensorsFile file(path);
  TensorChecker checker(adapter.config, path.string());
  for (const auto& [name, entry] : file.entries()) checker.check(name, entry);
  checker.finish();
  for (const auto& [name, entry] : file.entries()) {
    adapter.tensors.push_back({name, entry.shape, as_float(file.data(name), entry.dtype)});
  }
  return adapter;
}

}  // namespace ranktune::exporting
