// Inverted dropout whose mask is a function of what is dropped, never of where or when it is computed.
// Bound: bytes on the GPU (2 * T * H elements), Philox' integer products on the CPU.
#include "kernels/dropout_mask.hpp"

#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

RT_VECTORISE void drop_row(const float* x, float* out, const DropoutMask& mask, const Philox4& at,
                           std::int64_t width) {
  for (std::int64_t block = 0; block * 4 < width; ++block) {
    const Philox4 bits = mask.draw(at, static_cast<std::uint32_t>(block));
    const std::uint32_t lanes[4] = {bits.x, bits.y, bits.z, bits.w};
    const std::int64_t begin = block * 4;
    const std::int64_t end = std::min<std::int64_t>(width, begin + 4);
    for (std::int64_t i = begin; i < end; ++i)
      out[i] = mask.keeps(lanes[i - begin]) ? x[i] * mask.scale : 0.0F;
  }
}

}  // namespace

DropoutMask::DropoutMask(double p, std::uint64_t seed, std::uint32_t stream) {
  RT_CHECK(p >= 0 && p < 1, "dropout " + std::to_string(p) + " is outside [0, 1)");
  const Philox4 key = random_bits(seed, RandomPurpose::dropout, stream, 0);
  key0 = key.x;
  key1 = key.y;
  threshold = static_cast<std::uint32_t>(p * 4294967296.0);
  scale = static_cast<float>(1.0 / (1.0 - p));
}

void dropout(const Tensor& x, const DropoutKey& key, const Tensor& step, const Tensor& sample_of_token,
             const Tensor& positions, Tensor& out) {
  const Type type = activation_type(x, "x");
  const Rows in = rows_of(x, "x");
  rows_of(out, "out", in.count, in.width);
  check_like(out, "out", x);
  check_vector(step, "step", at::kLong, 1);
  check_vector(sample_of_token, "sample_of_token", at::kLong, in.count);
  check_vector(positions, "positions", at::kInt, in.count);
  check_device(step, "step", x);
  check_device(sample_of_token, "sample_of_token", x);
  check_device(positions, "positions", x);
  const Rows to = rows_of(out, "out");
  const DropoutMask mask(key.p, key.seed, key.stream);
  if (x.is_cuda()) {
    const CudaScope scope(x);
    cuda::dropout(type, device_rows(x, "x"), mask, device_data<std::int64_t>(step),
                  device_data<std::int64_t>(sample_of_token), device_data<std::int32_t>(positions),
                  device_rows(out, "out"), scope.stream());
    return;
  }
  const auto* from = x.const_data_ptr<float>();
  auto* y = out.mutable_data_ptr<float>();
  const auto now = *step.const_data_ptr<std::int64_t>();
  const auto* sample = sample_of_token.const_data_ptr<std::int64_t>();
  const auto* position = positions.const_data_ptr<std::int32_t>();
  for_each_row(in.count, 16 * in.width, [&](std::int64_t t) {
    drop_row(from + t * in.stride, y + t * to.stride, mask, DropoutMask::place(now, sample[t], position[t]),
             in.width);
  });
}

}  // namespace ranktune::kernels
