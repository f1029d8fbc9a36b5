// Where and in which type a kernel is tested, random inputs, poisoned outputs, and comparison with float64.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace ranktune::kernels {

using at::Tensor;

struct Place {
  at::DeviceType device;
  at::ScalarType type;
};

inline std::string place_name(const testing::TestParamInfo<Place>& info) {
  return std::string(info.param.device == at::kCUDA ? "cuda" : "cpu") +
         (info.param.type == at::kBFloat16 ? "_bf16" : "_fp32");
}

// A test on one device and type; the CUDA ones are skipped, with the reason, where there is no device.
class KernelTest : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam().device == at::kCUDA && c10::cuda::device_count() == 0)
      GTEST_SKIP() << "no CUDA device here";
    at::manual_seed(7);
  }

  bool bf16() const { return GetParam().type == at::kBFloat16; }
  at::Device device() const { return at::Device(GetParam().device); }

  // Values that the type holds exactly, so that the reference sees the same.
  Tensor random(at::IntArrayRef sizes, double scale = 1.0) const {
    return at::randn(sizes, at::kFloat).mul_(scale).to(GetParam().type).to(device());
  }

  Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::full(sizes, std::numeric_limits<double>::quiet_NaN(),
                    at::TensorOptions(type).device(device()));
  }
  Tensor poisoned(at::IntArrayRef sizes) const { return poisoned(sizes, GetParam().type); }

  // Rows of a wider poisoned matrix; `before` columns in front of them, `after` behind.
  Tensor wide(std::int64_t rows, std::int64_t cols, std::int64_t before = 0, std::int64_t after = 5) const {
    return poisoned({rows, before + cols + after}).narrow(1, before, cols);
  }
  Tensor random_wide(std::int64_t rows, std::int64_t cols, std::int64_t before = 0,
                     std::int64_t after = 5) const {
    Tensor view = wide(rows, cols, before, after);
    view.copy_(random({rows, cols}));
    return view;
  }

  Tensor on_device(const Tensor& host) const { return host.to(device()); }
  Tensor ints(const std::vector<std::int32_t>& values) const {
    return at::tensor(at::ArrayRef<std::int32_t>(values), at::kInt).to(device());
  }

  // One rounding to the storage type, or a few of fp32.
  double tolerance(double fp32 = 2e-6, double bf16_roundings = 1) const {
    return bf16() ? bf16_roundings * std::exp2(-8.0) : fp32;
  }
};

inline Tensor to_double(const Tensor& tensor) {
  return tensor.detach().to(at::kCPU).to(at::kDouble).contiguous();
}

inline Tensor leaf(const Tensor& tensor) {
  return to_double(tensor).clone().requires_grad_(true);
}

// max |difference| / max |reference|; infinite where a NaN is left. `floor`: the least to divide by, where a
// reference may be exactly zero.
inline double relative_error(const Tensor& got, const Tensor& reference, double floor = 1e-30) {
  const Tensor g = to_double(got);
  const Tensor r = to_double(reference);
  EXPECT_EQ(g.sizes(), r.sizes());
  if (g.numel() == 0) return 0;
  const double error = (g - r).abs().max().item<double>() / std::max(floor, r.abs().max().item<double>());
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return at::equal(a.to(at::kCPU).contiguous(), b.to(at::kCPU).contiguous());
}

// Everything around a view made by wide() is still poisoned.
inline bool surroundings_untouched(const Tensor& view) {
  const Tensor all = view.detach().as_strided({view.size(0), view.stride(0)}, {view.stride(0), 1}, 0).cpu();
  const std::int64_t kept = all.isnan().sum().item<std::int64_t>();
  return kept == view.size(0) * (view.stride(0) - view.size(1));
}

inline const std::vector<Place> kPlaces = {
    {at::kCPU, at::kFloat}, {at::kCUDA, at::kFloat}, {at::kCUDA, at::kBFloat16}};
inline const std::vector<Place> kFloatPlaces = {{at::kCPU, at::kFloat}, {at::kCUDA, at::kFloat}};

}  // namespace ranktune::kernels

#define RT_INSTANTIATE(suite, places) \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, testing::ValuesIn(places), place_name)
