#include "kernels/dynamic_map.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linspace.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "base/error.hpp"

namespace ranktune::kernels {
namespace {

using Map = std::array<float, static_cast<std::size_t>(kDynamicCodes)>;

Map make_map(bool both_signs) {
  constexpr int kExponents = 7;
  Map map{};
  std::size_t size = 0;
  for (int exponent = 0; exponent < kExponents; ++exponent) {
    const std::int64_t fractions = std::int64_t{1} << (both_signs ? exponent : exponent + 1);
    const at::Tensor bounds = at::linspace(0.1, 1, fractions + 1, at::kFloat);
    const at::Tensor means = (bounds.narrow(0, 0, fractions) + bounds.narrow(0, 1, fractions)) / 2.0;
    const at::Tensor scaled = means * std::pow(10.0, exponent - (kExponents - 1));
    for (std::int64_t i = 0; i < fractions; ++i) {
      map.at(size++) = scaled[i].item<float>();
      if (both_signs) map.at(size++) = -scaled[i].item<float>();
    }
  }
  map.at(size++) = 0;
  map.at(size++) = 1;
  RT_CHECK(size == map.size(), "the dynamic map has 256 values");
  std::sort(map.begin(), map.end());
  if (both_signs) map.front() = -1;
  return map;
}

}  // namespace

const float* dynamic_map(bool both_signs) {
  static const Map both = make_map(true);
  static const Map positive = make_map(false);
  return both_signs ? both.data() : positive.data();
}

}  // namespace ranktune::kernels
