#include "model/rope.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "base/error.hpp"

namespace ranktune::model {
namespace {

constexpr std::int64_t kMostPositions = std::int64_t{1} << 31;

void refuse_unknown_keys(const ConfigKeys& keys) {
  static const std::set<std::string> known{"rope_theta",
                                           "rope_type",
                                           "type",
                                           "factor",
                                           "low_freq_factor",
                                           "high_freq_factor",
                                           "original_max_position_embeddings",
                                           "partial_rotary_factor",
                                           "attention_factor",
                                           "beta_fast",
                                           "beta_slow",
                                           "mscale",
                                           "mscale_all_dim",
                                           "truncate",
                                           "finetuned"};
  for (const auto& [key, value] : keys.object().items()) {
    if (!known.contains(key)) keys.refuse(key, "is not supported");
  }
  if (keys.positive_or("partial_rotary_factor", 1.0) != 1.0) {
    keys.refuse("partial_rotary_factor", "is not supported; only 1 is");
  }
}

// The one of both objects that is there; null where none is.
const nlohmann::json* rope_object(const ConfigKeys& keys, std::string& key) {
  const auto filled = [&](const char* name) { return keys.present(name) && !keys.object().at(name).empty(); };
  const bool old_form = filled("rope_scaling");
  const bool new_form = filled("rope_parameters");
  if (!old_form && !new_form) return nullptr;
  key = new_form ? "rope_parameters" : "rope_scaling";
  const nlohmann::json& object = keys.object().at(key);
  if (old_form && new_form && keys.object().at("rope_scaling") != object) {
    keys.refuse("rope_scaling", "and rope_parameters = " + object.dump().substr(0, 80) +
                                    " contradict each other; keep one of them");
  }
  if (!object.is_object()) keys.refuse(key, "is not an object");
  return &object;
}

void parse_llama3(const ConfigKeys& keys, RopeConfig& rope) {
  rope.low_freq_factor = keys.positive("low_freq_factor");
  rope.high_freq_factor = keys.positive("high_freq_factor");
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    keys.refuse("high_freq_factor", "must be greater than low_freq_factor");
  }
}

// What attention scores grow by when the context does (Peng et al. 2023, section 3.4), divided between q and
// k.
double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void parse_yarn(const ConfigKeys& keys, RopeConfig& rope) {
  rope.beta_fast = keys.positive_or("beta_fast", rope.beta_fast);
  rope.beta_slow = keys.positive_or("beta_slow", rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) keys.refuse("beta_fast", "must not be less than beta_slow");
  rope.truncate = keys.flag_or("truncate", !keys.contains("truncate"));  // null is false, as in Transformers
  const bool both_scales = keys.present("mscale") && keys.present("mscale_all_dim");
  rope.attention_factor = both_scales ? yarn_mscale(rope.factor, keys.positive("mscale")) /
                                            yarn_mscale(rope.factor, keys.positive("mscale_all_dim"))
                                      : yarn_mscale(rope.factor, 1.0);
  rope.attention_factor = keys.positive_or("attention_factor", rope.attention_factor);
}

RopeConfig::Type type_of(const ConfigKeys& keys) {
  const std::string type = keys.text_or("rope_type", keys.text_or("type", "default"));
  using Type = RopeConfig::Type;
  if (type == "default") return Type::standard;
  if (type == "linear") return Type::linear;
  if (type == "dynamic") return Type::dynamic;
  if (type == "llama3") return Type::llama3;
  if (type == "yarn") return Type::yarn;
  keys.refuse(keys.present("rope_type") ? "rope_type" : "type",
              "is not supported; default, linear, dynamic, llama3 and yarn are");
}

// In fp32 as Transformers: its frequencies are fp32 numbers, and positions multiply them in fp32.
float plain_period(const RopeConfig& rope, std::int64_t i, std::int64_t head_dim) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
  return std::pow(static_cast<float>(rope.theta), exponent);
}

float llama3_frequency(const RopeConfig& rope, float frequency) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low_freq_factor) return static_cast<float>(frequency / rope.factor);
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth =
      (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return static_cast<float>((1.0 - smooth) * frequency / rope.factor + smooth * frequency);
}

// First and last dimension of the ramp between frequencies that are kept and those that are divided.
std::pair<float, float> yarn_range(const RopeConfig& rope, std::int64_t head_dim) {
  const auto dimension = [&](double rotations) {
    return static_cast<double>(head_dim) *
           std::log(static_cast<double>(rope.original_max_positions) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension(rope.beta_fast);
  double high = dimension(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // as Transformers, against a division by zero
  return {static_cast<float>(low), static_cast<float>(high)};
}

float yarn_frequency(const RopeConfig& rope, std::int64_t i, std::pair<float, float> range, float period) {
  const float ramp =
      std::clamp((static_cast<float>(i) - range.first) / (range.second - range.first), 0.0F, 1.0F);
  return 1.0F / (static_cast<float>(rope.factor) * period) * ramp + 1.0F / period * (1.0F - ramp);
}

}  // namespace

RopeConfig parse_rope(const ConfigKeys& keys, std::int64_t max_positions) {
  RopeConfig rope;
  rope.theta = keys.positive_or("rope_theta", rope.theta);
  std::string key;
  const nlohmann::json* object = rope_object(keys, key);
  if (object == nullptr) return rope;
  const ConfigKeys inner(*object, keys.where() + ": " + key);
  rope.type = type_of(inner);
  refuse_unknown_keys(inner);
  rope.theta = inner.positive_or("rope_theta", rope.theta);
  if (rope.type == RopeConfig::Type::standard) return rope;
  rope.original_max_positions =
      inner.count_or("original_max_position_embeddings", max_positions, kMostPositions);
  // A value beside the object goes before the one in it, as in Transformers.
  rope.original_max_positions =
      keys.count_or("original_max_position_embeddings", rope.original_max_positions, kMostPositions);
  if (rope.type == RopeConfig::Type::dynamic) rope.original_max_positions = max_positions;
  if (rope.type == RopeConfig::Type::yarn && !inner.present("factor")) {
    rope.factor = static_cast<double>(max_positions) / static_cast<double>(rope.original_max_positions);
  } else {
    rope.factor = inner.positive("factor");
  }
  if (rope.factor < 1.0) inner.refuse("factor", "is less than 1");
  if (rope.type == RopeConfig::Type::llama3) parse_llama3(inner, rope);
  if (rope.type == RopeConfig::Type::yarn) parse_yarn(inner, rope);
  return rope;
}

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
  std::vector<float> frequencies;
  const auto range = rope.type == RopeConfig::Type::yarn ? yarn_range(rope, head_dim) : std::pair{0.0F, 0.0F};
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const float period = plain_period(rope, i, head_dim);
    float frequency = 1.0F / period;
    if (rope.type == RopeConfig::Type::linear) frequency /= static_cast<float>(rope.factor);
    if (rope.type == RopeConfig::Type::llama3) frequency = llama3_frequency(rope, frequency);
    if (rope.type == RopeConfig::Type::yarn) frequency = yarn_frequency(rope, i, range, period);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

RopeTable rope_table(const RopeConfig& rope, std::int64_t head_dim, std::int64_t positions,
                     at::Device device) {
  const std::vector<float> frequencies = rope_inverse_frequencies(rope, head_dim);
  const std::int64_t half = head_dim / 2;
  const auto factor = static_cast<float>(rope.attention_factor);
  at::Tensor cosines = at::empty({positions, half}, at::kFloat);
  at::Tensor sines = at::empty({positions, half}, at::kFloat);
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies[static_cast<std::size_t>(i)];
      cosines.data_ptr<float>()[p * half + i] = std::cos(angle) * factor;
      sines.data_ptr<float>()[p * half + i] = std::sin(angle) * factor;
    }
  }
  return {cosines.to(device), sines.to(device), {}};
}

RopeTable empty_dynamic_table(std::int64_t head_dim, std::int64_t tokens, at::Device device) {
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  return {at::empty({tokens, head_dim / 2}, options), at::empty({tokens, head_dim / 2}, options),
          at::arange(tokens, options.dtype(at::kInt))};
}

// On the device throughout and without a read-back, so that it can be captured in a CUDA graph.
void fill_dynamic_table(const RopeConfig& rope, const at::Tensor& positions, const at::Tensor& cu_seqlens,
                        RopeTable& table) {
  const std::int64_t tokens = positions.size(0);
  const std::int64_t half = table.cosines.size(1);
  const auto fp32 = positions.options().dtype(at::kFloat);
  const auto original = static_cast<double>(rope.original_max_positions);
  const double exponent = static_cast<double>(2 * half) / static_cast<double>(2 * half - 2);

  const at::Tensor sequence_end = at::bucketize(table.rows.narrow(0, 0, tokens), cu_seqlens, false, true);
  const at::Tensor last_token = cu_seqlens.index_select(0, sequence_end).sub_(1);
  const at::Tensor length = positions.index_select(0, last_token).add_(1).to(at::kFloat).clamp_min_(original);
  const at::Tensor theta =
      length.mul_(rope.factor).div_(original).sub_(rope.factor - 1.0).pow_(exponent).mul_(rope.theta);
  const at::Tensor exponents = at::arange(0, 2 * half, 2, fp32).div_(static_cast<double>(2 * half));
  const at::Tensor angles =
      at::pow(theta.unsqueeze(1), exponents).reciprocal_().mul_(positions.to(at::kFloat).unsqueeze(1));
  at::Tensor cosines = table.cosines.narrow(0, 0, tokens);
  at::Tensor sines = table.sines.narrow(0, 0, tokens);
  at::cos_out(cosines, angles);
  at::sin_out(sines, angles);
}

}  // namespace ranktune::model
