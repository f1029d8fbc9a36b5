// Softmax cross-entropy, the logits overwritten by their gradient. Bound: bytes. On the CPU a row is read
// once for its maximum, then exponentiated and scaled while it lies in the cache: 3 * N * V elements of
// memory traffic.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

RT_VECTORISE float row_max(const float* x, std::int64_t width) {
  float highest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : highest)
  for (std::int64_t i = 0; i < width; ++i) highest = x[i] > highest ? x[i] : highest;
  return highest;
}

// x = exp(x - highest); returns the sum.
RT_VECTORISE double exponentiate(float* x, float highest, std::int64_t width) {
  double total = 0;
  for (std::int64_t begin = 0; begin < width; begin += 256) {
    const std::int64_t end = std::min<std::int64_t>(width, begin + 256);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = begin; i < end; ++i) {
      x[i] = vector_exp(x[i] - highest);
      sum += x[i];
    }
    total += static_cast<double>(sum);
  }
  return total;
}

RT_VECTORISE void scale(float* x, float factor, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) x[i] *= factor;
}

float row_in_place(float* x, std::int32_t target, std::int64_t width) {
  const float highest = row_max(x, width);
  const float wanted = x[target];
  const double sum = exponentiate(x, highest, width);
  scale(x, static_cast<float>(1.0 / sum), width);
  x[target] -= 1.0F;
  return static_cast<float>(std::log(sum) + static_cast<double>(highest) - static_cast<double>(wanted));
}

}  // namespace

void cross_entropy_in_place(Tensor& logits, const Tensor& targets, Tensor& nll_rows, Tensor& nll_sum) {
  const Type type = activation_type(logits, "logits");
  const Rows rows = rows_of(logits, "logits");
  check_vector(targets, "targets", at::kInt, rows.count);
  check_vector(nll_rows, "nll_rows", at::kFloat, rows.count);
  check_vector(nll_sum, "nll_sum", at::kDouble, 1);
  check_device(targets, "targets", logits);
  check_device(nll_rows, "nll_rows", logits);
  check_device(nll_sum, "nll_sum", logits);
  if (logits.is_cuda()) {
    const CudaScope scope(logits);
    cuda::cross_entropy_in_place(type, device_rows(logits, "logits"), device_data<std::int32_t>(targets),
                                 device_data<float>(nll_rows), device_data<double>(nll_sum), scope.stream());
    return;
  }
  auto* x = logits.mutable_data_ptr<float>();
  const auto* target = targets.const_data_ptr<std::int32_t>();
  auto* nll = nll_rows.mutable_data_ptr<float>();
  for_each_row(rows.count, 4 * rows.width, [&](std::int64_t t) {
    float* row = x + t * rows.stride;
    if (target[t] < 0) {
      std::memset(row, 0, static_cast<std::size_t>(rows.width) * sizeof(float));
      nll[t] = 0;
      return;
    }
    RT_CHECK(target[t] < rows.width, "target " + std::to_string(target[t]) +
                                         " is outside the vocabulary of " + std::to_string(rows.width));
    nll[t] = row_in_place(row, target[t], rows.width);
  });
  double sum = 0;
  for (std::int64_t t = 0; t < rows.count; ++t) sum += static_cast<double>(nll[t]);
  *nll_sum.mutable_data_ptr<double>() += sum;
}

}  // namespace ranktune::kernels
