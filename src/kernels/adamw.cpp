// Bound: bytes, 4 fp32 read and 3 written per parameter.
#include <cmath>

#include "kernels/adamw_update.hpp"
#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

RT_VECTORISE void update_range(const AdamWFactors& factors, const float* gradient, float* master,
                               float* exp_avg, float* exp_avg_sq, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i)
    factors.update(gradient[i], master[i], exp_avg[i], exp_avg_sq[i]);
}

}  // namespace

void adamw_step(const AdamW& settings, const Tensor& hyper, const Tensor& outcome, const Tensor& gradient,
                Tensor& master, Tensor& exp_avg, Tensor& exp_avg_sq) {
  const std::int64_t count = master.numel();
  check_vector(master, "master", at::kFloat, 0);
  check_vector(gradient, "gradient", at::kFloat, count);
  check_vector(exp_avg, "exp_avg", at::kFloat, count);
  check_vector(exp_avg_sq, "exp_avg_sq", at::kFloat, count);
  check_vector(hyper, "hyper", at::kFloat, 3);
  check_vector(outcome, "outcome", at::kFloat, outcome_bad_rank + 1);
  check_device(gradient, "gradient", master);
  check_device(exp_avg, "exp_avg", master);
  check_device(exp_avg_sq, "exp_avg_sq", master);
  check_device(hyper, "hyper", master);
  check_device(outcome, "outcome", master);
  if (master.is_cuda()) {
    const CudaScope scope(master);
    cuda::adamw_step(settings, device_data<float>(hyper), device_data<float>(outcome),
                     device_data<float>(gradient), device_data<float>(master), device_data<float>(exp_avg),
                     device_data<float>(exp_avg_sq), count, scope.stream());
    return;
  }
  const auto* result = outcome.const_data_ptr<float>();
  if (result[outcome_bad] != 0.0F) return;
  const AdamWFactors factors(settings.beta1, settings.beta2, settings.eps, settings.weight_decay,
                             hyper.const_data_ptr<float>(), result[outcome_multiplier]);
  const auto* g = gradient.const_data_ptr<float>();
  auto* w = master.mutable_data_ptr<float>();
  auto* m = exp_avg.mutable_data_ptr<float>();
  auto* v = exp_avg_sq.mutable_data_ptr<float>();
  at::parallel_for(0, count, kReductionBlock, [&](std::int64_t begin, std::int64_t end) {
    update_range(factors, g, w, m, v, begin, end);
  });
}

}  // namespace ranktune::kernels
