// What the ranks sum beside the gradient, and what the optimizer needs of the sum. Bound: N fp32 read, each.
#include <algorithm>
#include <cmath>

#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/reduction_outcome.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

// 0 * x is NaN for every x that is not finite, and stays so in a sum.
RT_VECTORISE double nonfinite_probe(const float* x, std::int64_t begin, std::int64_t end) {
  float probe = 0;
#pragma omp simd reduction(+ : probe)
  for (std::int64_t i = begin; i < end; ++i) probe += 0.0F * x[i];
  return static_cast<double>(probe);
}

RT_VECTORISE double sum_of_squares(const float* x, std::int64_t begin, std::int64_t end) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = begin; i < end; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace

void fill_tail(const Tensor& gradient, const Tensor& nll_sum, double targets, double stop, double tokens,
               std::int64_t rank, Tensor& tail) {
  check_vector(gradient, "gradient", at::kFloat, 0);
  check_vector(nll_sum, "nll_sum", at::kDouble, 1);
  check_vector(tail, "tail", at::kFloat, tail_nonfinite + rank + 1);
  check_device(nll_sum, "nll_sum", gradient);
  check_device(tail, "tail", gradient);
  if (gradient.is_cuda()) {
    const CudaScope scope(gradient);
    const cuda::TailValues values{static_cast<float>(targets), static_cast<float>(stop),
                                  static_cast<float>(tokens), rank};
    cuda::fill_tail(device_data<float>(gradient), gradient.numel(), device_data<double>(nll_sum), values,
                    device_data<float>(tail), tail.numel(), scope.stream());
    return;
  }
  const auto* g = gradient.const_data_ptr<float>();
  const double probe = blockwise_sum(
      gradient.numel(), [&](std::int64_t begin, std::int64_t end) { return nonfinite_probe(g, begin, end); });
  const auto nll = static_cast<float>(*nll_sum.const_data_ptr<double>());
  auto* slot = tail.mutable_data_ptr<float>();
  std::fill_n(slot, tail.numel(), 0.0F);
  slot[tail_nll] = nll;
  slot[tail_targets] = static_cast<float>(targets);
  slot[tail_stop] = static_cast<float>(stop);
  slot[tail_tokens] = static_cast<float>(tokens);
  slot[tail_nonfinite + rank] = std::isfinite(probe) && std::isfinite(nll) ? 0.0F : 1.0F;
}

void finish_reduction(const Tensor& gradient, const Tensor& tail, double max_norm, Tensor& scratch,
                      Tensor& outcome) {
  check_vector(gradient, "gradient", at::kFloat, 0);
  check_vector(tail, "tail", at::kFloat, tail_nonfinite + 1);
  check_vector(scratch, "scratch", at::kDouble, 1024);
  check_vector(outcome, "outcome", at::kFloat, outcome_bad_rank + 1);
  check_device(tail, "tail", gradient);
  check_device(scratch, "scratch", gradient);
  check_device(outcome, "outcome", gradient);
  if (gradient.is_cuda()) {
    const CudaScope scope(gradient);
    cuda::finish_reduction(device_data<float>(gradient), gradient.numel(), device_data<float>(tail),
                           tail.numel(), max_norm, device_data<double>(scratch), device_data<float>(outcome),
                           scope.stream());
    return;
  }
  const auto* g = gradient.const_data_ptr<float>();
  const double squares = blockwise_sum(
      gradient.numel(), [&](std::int64_t begin, std::int64_t end) { return sum_of_squares(g, begin, end); });
  set_outcome(squares, tail.const_data_ptr<float>(), tail.numel(), max_norm,
              outcome.mutable_data_ptr<float>());
}

}  // namespace ranktune::kernels
