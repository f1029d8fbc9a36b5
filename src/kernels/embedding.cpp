// Bound: T * H elements read and written.
#include <cstring>

#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {

void embedding_forward(const Tensor& ids, const Tensor& weight, Tensor& out) {
  const Type type = activation_type(weight, "weight");
  const Rows table = rows_of(weight, "weight");
  check_vector(ids, "ids", at::kInt, 0);
  rows_of(out, "out", ids.numel(), table.width);
  check_like(out, "out", weight);
  check_device(ids, "ids", weight);
  const Rows target = rows_of(out, "out");
  if (weight.is_cuda()) {
    const CudaScope scope(weight);
    cuda::embedding_forward(type, device_data<std::int32_t>(ids), device_rows(weight, "weight"),
                            device_rows(out, "out"), scope.stream());
    return;
  }
  const auto* id = ids.const_data_ptr<std::int32_t>();
  const auto* from = weight.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  for_each_row(target.count, target.width, [&](std::int64_t t) {
    RT_CHECK(
        id[t] >= 0 && id[t] < table.count,
        "token id " + std::to_string(id[t]) + " is outside the vocabulary of " + std::to_string(table.count));
    std::memcpy(to + t * target.stride, from + id[t] * table.stride,
                static_cast<std::size_t>(target.width) * sizeof(float));
  });
}

}  // namespace ranktune::kernels
