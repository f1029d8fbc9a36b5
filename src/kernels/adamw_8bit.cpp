// Bound: bytes, 2 fp32 and 2 bytes read, 1 fp32 and 2 bytes written per parameter.
#include "kernels/adamw_8bit.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "kernels/adamw_update.hpp"
#include "kernels/cpu.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/dynamic_map.hpp"
#include "kernels/quantized_launch.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

constexpr std::int64_t kLeastQuantised = 4096;  // elements, as bitsandbytes' min_8bit_size
constexpr std::int64_t kColumns = 3;

// One moment of a block while it is updated.
struct BlockMoment {
  std::array<float, static_cast<std::size_t>(kDynamicBlock)> values{};

  void decode(const std::uint8_t* codes, const float* map, float absmax, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = map[codes[i]] * absmax;
  }
  void encode(std::uint8_t* codes, const float* map, float& absmax, std::int64_t count) const {
    absmax = 0;
    for (std::int64_t i = 0; i < count; ++i)
      absmax = std::max(absmax, std::abs(values[static_cast<std::size_t>(i)]));
    for (std::int64_t i = 0; i < count; ++i)
      codes[i] = moment_code(map, values[static_cast<std::size_t>(i)], absmax);
  }
};

}  // namespace

AdamW8bit::AdamW8bit(const std::vector<FlatSpan>& tensors, std::int64_t flat_elements, at::Device device)
    : flat_elements_(flat_elements) {
  std::vector<std::int64_t> rows;
  std::int64_t small = 0;
  for (const FlatSpan& tensor : tensors) {
    RT_CHECK(tensor.offset >= 0 && tensor.offset + tensor.elements <= flat_elements,
             "a tensor lies in the buffers");
    const bool keeps_fp32 = tensor.elements < kLeastQuantised;
    for (std::int64_t begin = 0; begin < tensor.elements; begin += kDynamicBlock) {
      rows.insert(rows.end(), {tensor.offset + begin, std::min(kDynamicBlock, tensor.elements - begin),
                               keeps_fp32 ? small + begin : -1});
    }
    if (keeps_fp32) small += tensor.elements;
  }
  const auto blocks = static_cast<std::int64_t>(rows.size()) / kColumns;
  const Tensor table = at::empty({blocks, kColumns}, at::kLong);
  std::copy(rows.begin(), rows.end(), table.mutable_data_ptr<std::int64_t>());
  table_ = table.to(device);
  const Tensor maps = at::empty({2, kDynamicCodes}, at::kFloat);
  std::copy_n(dynamic_map(true), kDynamicCodes, maps.mutable_data_ptr<float>());
  std::copy_n(dynamic_map(false), kDynamicCodes, maps.mutable_data_ptr<float>() + kDynamicCodes);
  maps_ = maps.to(device);

  const auto fp32 = at::TensorOptions(at::kFloat).device(device);
  exp_avg_ = at::zeros({flat_elements}, fp32.dtype(at::kByte));
  exp_avg_sq_ = at::zeros({flat_elements}, fp32.dtype(at::kByte));
  exp_avg_absmax_ = at::zeros({blocks}, fp32);  // zero: every code stands for zero
  exp_avg_sq_absmax_ = at::zeros({blocks}, fp32);
  small_exp_avg_ = at::zeros({small}, fp32);
  small_exp_avg_sq_ = at::zeros({small}, fp32);
}

std::vector<std::pair<std::string, Tensor>> AdamW8bit::state() const {
  return {{"exp_avg", exp_avg_},
          {"exp_avg_sq", exp_avg_sq_},
          {"exp_avg_absmax", exp_avg_absmax_},
          {"exp_avg_sq_absmax", exp_avg_sq_absmax_},
          {"small_exp_avg", small_exp_avg_},
          {"small_exp_avg_sq", small_exp_avg_sq_}};
}

void AdamW8bit::step(const AdamW& settings, const Tensor& hyper, const Tensor& outcome,
                     const Tensor& gradient, Tensor& master) {
  check_vector(master, "master", at::kFloat, flat_elements_);
  check_vector(gradient, "gradient", at::kFloat, flat_elements_);
  check_vector(hyper, "hyper", at::kFloat, 3);
  check_vector(outcome, "outcome", at::kFloat, outcome_bad_rank + 1);
  check_device(master, "master", exp_avg_);
  check_device(gradient, "gradient", exp_avg_);
  check_device(hyper, "hyper", exp_avg_);
  check_device(outcome, "outcome", exp_avg_);
  if (!master.is_cuda()) {
    step_on_cpu(settings, hyper, outcome, gradient, master);
    return;
  }
  const CudaScope scope(master);
  const cuda::Moments8bit moments{device_data<std::uint8_t>(exp_avg_),
                                  device_data<std::uint8_t>(exp_avg_sq_),
                                  device_data<float>(exp_avg_absmax_),
                                  device_data<float>(exp_avg_sq_absmax_),
                                  device_data<float>(small_exp_avg_),
                                  device_data<float>(small_exp_avg_sq_),
                                  device_data<float>(maps_),
                                  device_data<std::int64_t>(table_),
                                  table_.size(0)};
  cuda::adamw_8bit_step(settings, device_data<float>(hyper), device_data<float>(outcome),
                        device_data<float>(gradient), device_data<float>(master), moments, scope.stream());
}

void AdamW8bit::step_on_cpu(const AdamW& settings, const Tensor& hyper, const Tensor& outcome,
                            const Tensor& gradient, Tensor& master) const {
  const auto* result = outcome.const_data_ptr<float>();
  if (result[outcome_bad] != 0.0F) return;
  const AdamWFactors factors(settings.beta1, settings.beta2, settings.eps, settings.weight_decay,
                             hyper.const_data_ptr<float>(), result[outcome_multiplier]);
  const auto* table = table_.const_data_ptr<std::int64_t>();
  const auto* summed = gradient.const_data_ptr<float>();
  auto* weights = master.mutable_data_ptr<float>();
  const float* map_m = dynamic_map(true);
  const float* map_v = dynamic_map(false);
  auto* codes_m = exp_avg_.mutable_data_ptr<std::uint8_t>();
  auto* codes_v = exp_avg_sq_.mutable_data_ptr<std::uint8_t>();
  auto* absmax_m = exp_avg_absmax_.mutable_data_ptr<float>();
  auto* absmax_v = exp_avg_sq_absmax_.mutable_data_ptr<float>();
  auto* small_m = small_exp_avg_.mutable_data_ptr<float>();
  auto* small_v = small_exp_avg_sq_.mutable_data_ptr<float>();
  for_each_row(table_.size(0), 16 * kDynamicBlock, [&](std::int64_t block) {
    const std::int64_t offset = table[block * kColumns];
    const std::int64_t count = table[block * kColumns + 1];
    const std::int64_t small = table[block * kColumns + 2];
    const float* g = summed + offset;
    float* w = weights + offset;
    if (small >= 0) {
      for (std::int64_t i = 0; i < count; ++i)
        factors.update(g[i], w[i], small_m[small + i], small_v[small + i]);
      return;
    }
    BlockMoment m;
    BlockMoment v;
    m.decode(codes_m + offset, map_m, absmax_m[block], count);
    v.decode(codes_v + offset, map_v, absmax_v[block], count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto k = static_cast<std::size_t>(i);
      factors.update(g[i], w[i], m.values[k], v.values[k]);
    }
    m.encode(codes_m + offset, map_m, absmax_m[block], count);
    v.encode(codes_v + offset, map_v, absmax_v[block], count);
  });
}

}  // namespace ranktune::kernels
