// SwiGLU (Shazeer 2020): silu(gate) * up. Bound: bytes, 3 * T * I elements forward, 5 * T * I backward (6
// where the result is written again).
#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

RT_VECTORISE void forward_row(const float* gate, const float* up, float* out, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) out[i] = gate[i] / (1.0F + vector_exp(-gate[i])) * up[i];
}

// silu'(g) = s * (1 + g * (1 - s)) with s the sigmoid of g.
RT_VECTORISE void backward_row(const float* dout, const float* gate, const float* up, float* dgate,
                               float* dup, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = gate[i];
    const float u = up[i];
    const float d = dout[i];
    const float s = 1.0F / (1.0F + vector_exp(-g));
    dgate[i] = d * u * s * (1.0F + g * (1.0F - s));
    dup[i] = d * g * s;
  }
}

}  // namespace

void swiglu_forward(const Tensor& gate_up, Tensor& out) {
  const Type type = activation_type(gate_up, "gate_up");
  const Rows to = rows_of(out, "out");
  rows_of(gate_up, "gate_up", to.count, 2 * to.width);
  check_like(out, "out", gate_up);
  if (gate_up.is_cuda()) {
    const CudaScope scope(gate_up);
    cuda::swiglu_forward(type, device_rows(gate_up, "gate_up"), device_rows(out, "out"), scope.stream());
    return;
  }
  const Rows in = rows_of(gate_up, "gate_up");
  const auto* x = gate_up.const_data_ptr<float>();
  auto* y = out.mutable_data_ptr<float>();
  for_each_row(to.count, 4 * to.width, [&](std::int64_t t) {
    const float* gate = x + t * in.stride;
    forward_row(gate, gate + to.width, y + t * to.stride, to.width);
  });
}

void swiglu_backward(const Tensor& dout, const Tensor& gate_up, Tensor& dgate_up, Tensor& out) {
  const Type type = activation_type(dout, "dout");
  const Rows from = rows_of(dout, "dout");
  rows_of(gate_up, "gate_up", from.count, 2 * from.width);
  rows_of(dgate_up, "dgate_up", from.count, 2 * from.width);
  check_like(gate_up, "gate_up", dout);
  check_like(dgate_up, "dgate_up", dout);
  if (out.defined()) {
    rows_of(out, "out", from.count, from.width);
    check_like(out, "out", dout);
  }
  if (dout.is_cuda()) {
    const CudaScope scope(dout);
    cuda::swiglu_backward(type, device_rows(dout, "dout"), device_rows(gate_up, "gate_up"),
                          device_rows(dgate_up, "dgate_up"), device_rows(out, "out"), scope.stream());
    return;
  }
  const Rows in = rows_of(gate_up, "gate_up");
  const Rows to = rows_of(dgate_up, "dgate_up");
  const auto* d = dout.const_data_ptr<float>();
  const auto* x = gate_up.const_data_ptr<float>();
  auto* dx = dgate_up.mutable_data_ptr<float>();
  const Rows again = out.defined() ? rows_of(out, "out") : Rows{};
  float* y = out.defined() ? out.mutable_data_ptr<float>() : nullptr;
  for_each_row(from.count, 5 * from.width, [&](std::int64_t t) {
    const float* gate = x + t * in.stride;
    float* dgate = dx + t * to.stride;
    if (out.defined()) forward_row(gate, gate + from.width, y + t * again.stride, from.width);
    backward_row(d + t * from.stride, gate, gate + from.width, dgate, dgate + from.width, from.width);
  });
}

}  // namespace ranktune::kernels
