// Root mean square normalisation (Zhang and Sennrich 2019) with the residual addition before it.
// Bound: bytes. Forward reads residual and delta and writes residual and out; backward reads dout, residual
// and dresidual and writes dresidual.
#include <cmath>

#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

RT_VECTORISE void add_row(const float* a, const float* b, float* sum, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) sum[i] = a[i] + b[i];
}

// Sums are fp32 within short blocks and double over them, so that wide rows lose nothing.
constexpr std::int64_t kBlock = 256;

RT_VECTORISE float norm_row(const float* x, const float* weight, double eps, float* out, std::int64_t width) {
  double total = 0;
  for (std::int64_t begin = 0; begin < width; begin += kBlock) {
    const std::int64_t end = std::min(width, begin + kBlock);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = begin; i < end; ++i) squares += x[i] * x[i];
    total += static_cast<double>(squares);
  }
  const auto factor = static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(width) + eps));
  for (std::int64_t i = 0; i < width; ++i) out[i] = (x[i] * factor) * weight[i];
  return factor;
}

// With y = x_hat * w and x_hat = x * r: dx = r * (dy * w - x_hat * mean(dy * w * x_hat)).
RT_VECTORISE void norm_row_backward(const float* dout, const float* x, const float* weight, float factor,
                                    float* dx, std::int64_t width) {
  double total = 0;
  for (std::int64_t begin = 0; begin < width; begin += kBlock) {
    const std::int64_t end = std::min(width, begin + kBlock);
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t i = begin; i < end; ++i) dot += dout[i] * weight[i] * x[i];
    total += static_cast<double>(dot);
  }
  const float along = static_cast<float>(total / static_cast<double>(width)) * factor * factor;
  for (std::int64_t i = 0; i < width; ++i) dx[i] += factor * (dout[i] * weight[i] - x[i] * along);
}

}  // namespace

void add_rms_norm_forward(const Tensor& residual_in, const Tensor& delta, Tensor& residual_out,
                          const Tensor& weight, double eps, Tensor& out, Tensor& rstd) {
  const Type type = activation_type(residual_in, "residual_in");
  const Rows in = rows_of(residual_in, "residual_in");
  const bool adds = delta.defined();
  if (adds) {
    rows_of(delta, "delta", in.count, in.width);
    rows_of(residual_out, "residual_out", in.count, in.width);
    check_like(delta, "delta", residual_in);
    check_like(residual_out, "residual_out", residual_in);
  }
  check_vector(weight, "weight", residual_in.scalar_type(), in.width);
  check_device(weight, "weight", residual_in);
  rows_of(out, "out", in.count, in.width);
  check_like(out, "out", residual_in);
  check_vector(rstd, "rstd", at::kFloat, in.count);
  check_device(rstd, "rstd", residual_in);
  if (residual_in.is_cuda()) {
    const CudaScope scope(residual_in);
    cuda::add_rms_norm_forward(type, device_rows(residual_in, "residual_in"), device_rows(delta, "delta"),
                               adds ? device_rows(residual_out, "residual_out") : DeviceRows{},
                               weight.const_data_ptr(), static_cast<float>(eps), device_rows(out, "out"),
                               rstd.mutable_data_ptr<float>(), scope.stream());
    return;
  }
  const Rows added = adds ? rows_of(delta, "delta") : Rows{};
  const Rows sum = adds ? rows_of(residual_out, "residual_out") : in;
  const Rows normed = rows_of(out, "out");
  const auto* x = residual_in.const_data_ptr<float>();
  const auto* d = adds ? delta.const_data_ptr<float>() : nullptr;
  auto* s = adds ? residual_out.mutable_data_ptr<float>() : nullptr;
  const auto* w = weight.const_data_ptr<float>();
  auto* y = out.mutable_data_ptr<float>();
  auto* factor = rstd.mutable_data_ptr<float>();
  for_each_row(in.count, 2 * in.width, [&](std::int64_t t) {
    const float* row = x + t * in.stride;
    if (adds) {
      add_row(row, d + t * added.stride, s + t * sum.stride, in.width);
      row = s + t * sum.stride;
    }
    factor[t] = norm_row(row, w, eps, y + t * normed.stride, in.width);
  });
}

void rms_norm_backward(const Tensor& dout, const Tensor& residual, const Tensor& weight, const Tensor& rstd,
                       Tensor& dresidual) {
  const Type type = activation_type(dout, "dout");
  const Rows from = rows_of(dout, "dout");
  rows_of(residual, "residual", from.count, from.width);
  rows_of(dresidual, "dresidual", from.count, from.width);
  check_like(residual, "residual", dout);
  check_like(dresidual, "dresidual", dout);
  check_vector(weight, "weight", dout.scalar_type(), from.width);
  check_device(weight, "weight", dout);
  check_vector(rstd, "rstd", at::kFloat, from.count);
  check_device(rstd, "rstd", dout);
  if (dout.is_cuda()) {
    const CudaScope scope(dout);
    cuda::rms_norm_backward(type, device_rows(dout, "dout"), device_rows(residual, "residual"),
                            weight.const_data_ptr(), rstd.const_data_ptr<float>(),
                            device_rows(dresidual, "dresidual"), scope.stream());
    return;
  }
  const Rows x = rows_of(residual, "residual");
  const Rows to = rows_of(dresidual, "dresidual");
  const auto* dy = dout.const_data_ptr<float>();
  const auto* in = residual.const_data_ptr<float>();
  const auto* w = weight.const_data_ptr<float>();
  const auto* factor = rstd.const_data_ptr<float>();
  auto* dx = dresidual.mutable_data_ptr<float>();
  for_each_row(from.count, 3 * from.width, [&](std::int64_t t) {
    norm_row_backward(dy + t * from.stride, in + t * x.stride, w, factor[t], dx + t * to.stride, from.width);
  });
}

}  // namespace ranktune::kernels
