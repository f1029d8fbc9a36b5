// Rotary position embedding (Su et al. 2021, rotate-half form) after an optional RMSNorm of each head.
// Bound: bytes, T * (heads + kv_heads) * head_dim elements read and written.
#include <cmath>

#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

RT_VECTORISE void rotate(const float* in, const float* cosine, const float* sine, float* out,
                         std::int64_t half) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float low = in[i];
    const float high = in[i + half];
    out[i] = low * cosine[i] - high * sine[i];
    out[i + half] = high * cosine[i] + low * sine[i];
  }
}

// The transpose of rotate, in place.
RT_VECTORISE void rotate_back(float* d, const float* cosine, const float* sine, std::int64_t half) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float low = d[i];
    const float high = d[i + half];
    d[i] = low * cosine[i] + high * sine[i];
    d[i + half] = high * cosine[i] - low * sine[i];
  }
}

RT_VECTORISE float norm_head(const float* x, const float* weight, double eps, float* out,
                             std::int64_t width) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const float factor = 1.0F / std::sqrt(squares / static_cast<float>(width) + static_cast<float>(eps));
  for (std::int64_t i = 0; i < width; ++i) out[i] = (x[i] * factor) * weight[i];
  return factor;
}

RT_VECTORISE void norm_head_backward(float* d, const float* x, const float* weight, float factor,
                                     std::int64_t width) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < width; ++i) dot += d[i] * weight[i] * x[i];
  const float along = dot * factor * factor / static_cast<float>(width);
  for (std::int64_t i = 0; i < width; ++i) d[i] = factor * (d[i] * weight[i] - x[i] * along);
}

// Whether there are norms.
bool check_arguments(const Tensor& qk, const Tensor& q_weight, const Tensor& k_weight, const Tensor& cosines,
                     const Tensor& sines, const Tensor& positions, const HeadShape& shape,
                     const Tensor& rstd) {
  activation_type(qk, "qk");
  const std::int64_t heads = shape.heads + shape.kv_heads;
  rows_of(qk, "qk", positions.numel(), heads * shape.head_dim);
  RT_CHECK(shape.head_dim % 2 == 0, "head_dim " + std::to_string(shape.head_dim) + " is odd");
  check_vector(positions, "positions", at::kInt, 0);
  check_vector(cosines, "cosines", at::kFloat, 0);
  check_vector(sines, "sines", at::kFloat, cosines.numel());
  check_sizes(cosines, "cosines", {cosines.size(0), shape.head_dim / 2});
  check_device(positions, "positions", qk);
  check_device(cosines, "cosines", qk);
  check_device(sines, "sines", qk);
  const bool norms = q_weight.defined();
  RT_CHECK(norms == k_weight.defined(), "q and k must both have a norm or none");
  if (norms) {
    check_vector(q_weight, "q_weight", qk.scalar_type(), shape.head_dim);
    check_vector(k_weight, "k_weight", qk.scalar_type(), shape.head_dim);
    check_vector(rstd, "rstd", at::kFloat, positions.numel() * heads);
    check_device(q_weight, "q_weight", qk);
    check_device(k_weight, "k_weight", qk);
    check_device(rstd, "rstd", qk);
  }
  return norms;
}

cuda::RotaryArguments device_arguments(const Tensor& q_weight, const Tensor& k_weight, double eps,
                                       const Tensor& cosines, const Tensor& sines, const Tensor& positions,
                                       const HeadShape& shape, const Tensor& rstd) {
  return {device_data<void>(q_weight),
          device_data<void>(k_weight),
          static_cast<float>(eps),
          device_data<float>(cosines),
          device_data<float>(sines),
          device_data<std::int32_t>(positions),
          cosines.size(0),
          shape.heads,
          shape.kv_heads,
          shape.head_dim,
          q_weight.defined() ? device_data<float>(rstd) : nullptr};
}

void check_position(std::int32_t position, std::int64_t table) {
  RT_CHECK(position >= 0 && position < table, "position " + std::to_string(position) +
                                                  " is outside the rotary table of " + std::to_string(table));
}

}  // namespace

void qk_norm_rope_forward(const Tensor& qk_in, Tensor& qk_out, const Tensor& q_weight, const Tensor& k_weight,
                          double eps, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
                          const HeadShape& shape, Tensor& rstd) {
  const bool norms = check_arguments(qk_in, q_weight, k_weight, cosines, sines, positions, shape, rstd);
  rows_of(qk_out, "qk_out", qk_in.size(0), qk_in.size(1));
  check_like(qk_out, "qk_out", qk_in);
  RT_CHECK(!norms || qk_in.const_data_ptr() != qk_out.const_data_ptr(),
           "with norms the backward pass needs the input, so the rotation cannot be in place");
  if (qk_in.is_cuda()) {
    const CudaScope scope(qk_in);
    cuda::qk_norm_rope_forward(
        activation_type(qk_in, "qk_in"), device_rows(qk_in, "qk_in"), device_rows(qk_out, "qk_out"),
        device_arguments(q_weight, k_weight, eps, cosines, sines, positions, shape, rstd), scope.stream());
    return;
  }
  const Rows in = rows_of(qk_in, "qk_in");
  const Rows out = rows_of(qk_out, "qk_out");
  const auto* x = qk_in.const_data_ptr<float>();
  auto* y = qk_out.mutable_data_ptr<float>();
  const auto* position = positions.const_data_ptr<std::int32_t>();
  const auto* cosine = cosines.const_data_ptr<float>();
  const auto* sine = sines.const_data_ptr<float>();
  const auto* weight_q = norms ? q_weight.const_data_ptr<float>() : nullptr;
  const auto* weight_k = norms ? k_weight.const_data_ptr<float>() : nullptr;
  auto* factor = norms ? rstd.mutable_data_ptr<float>() : nullptr;
  const std::int64_t heads = shape.heads + shape.kv_heads;
  const std::int64_t half = shape.head_dim / 2;
  for_each_row(in.count, in.width, [&](std::int64_t t) {
    check_position(position[t], cosines.size(0));
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* from = x + t * in.stride + h * shape.head_dim;
      float* to = y + t * out.stride + h * shape.head_dim;
      if (norms) {
        factor[t * heads + h] =
            norm_head(from, h < shape.heads ? weight_q : weight_k, eps, to, shape.head_dim);
        from = to;
      }
      rotate(from, cosine + position[t] * half, sine + position[t] * half, to, half);
    }
  });
}

void qk_norm_rope_backward(Tensor& dqk, const Tensor& qk_in, const Tensor& q_weight, const Tensor& k_weight,
                           const Tensor& cosines, const Tensor& sines, const Tensor& positions,
                           const HeadShape& shape, const Tensor& rstd) {
  const bool norms = check_arguments(dqk, q_weight, k_weight, cosines, sines, positions, shape, rstd);
  const Rows grad = rows_of(dqk, "dqk");
  if (norms) {
    rows_of(qk_in, "qk_in", grad.count, grad.width);
    check_like(qk_in, "qk_in", dqk);
  }
  if (dqk.is_cuda()) {
    const CudaScope scope(dqk);
    cuda::qk_norm_rope_backward(
        activation_type(dqk, "dqk"), device_rows(dqk, "dqk"),
        norms ? device_rows(qk_in, "qk_in") : DeviceRows{},
        device_arguments(q_weight, k_weight, 0, cosines, sines, positions, shape, rstd), scope.stream());
    return;
  }
  const Rows in = norms ? rows_of(qk_in, "qk_in") : Rows{};
  auto* d = dqk.mutable_data_ptr<float>();
  const auto* x = norms ? qk_in.const_data_ptr<float>() : nullptr;
  const auto* position = positions.const_data_ptr<std::int32_t>();
  const auto* cosine = cosines.const_data_ptr<float>();
  const auto* sine = sines.const_data_ptr<float>();
  const auto* weight_q = norms ? q_weight.const_data_ptr<float>() : nullptr;
  const auto* weight_k = norms ? k_weight.const_data_ptr<float>() : nullptr;
  const auto* factor = norms ? rstd.const_data_ptr<float>() : nullptr;
  const std::int64_t heads = shape.heads + shape.kv_heads;
  const std::int64_t half = shape.head_dim / 2;
  for_each_row(grad.count, grad.width, [&](std::int64_t t) {
    check_position(position[t], cosines.size(0));
    for (std::int64_t h = 0; h < heads; ++h) {
      float* head = d + t * grad.stride + h * shape.head_dim;
      rotate_back(head, cosine + position[t] * half, sine + position[t] * half, half);
      if (norms) {
        norm_head_backward(head, x + t * in.stride + h * shape.head_dim,
                           h < shape.heads ? weight_q : weight_k, factor[t * heads + h], shape.head_dim);
      }
    }
  });
}

}  // namespace ranktune::kernels
