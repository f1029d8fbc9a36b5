#include "kernels/lora_init.hpp"

#include <c10/util/BFloat16.h>

#include "base/philox.hpp"
#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/dummy_values.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

template <class Element>
void fill_normal(Element* values, const Rows& rows, float scale, std::uint64_t seed, std::uint32_t stream) {
  for_each_row(rows.count, 8 * rows.width, [&](std::int64_t r) {
    Element* row = values + r * rows.stride;
    Philox4 bits{};
    for (std::int64_t c = 0; c < rows.width; ++c) {
      const auto index = static_cast<std::uint64_t>(r * rows.width + c);
      if (c == 0 || index % 4 == 0) bits = random_bits(seed, RandomPurpose::dummy_weights, stream, index / 4);
      const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
      row[c] = static_cast<Element>(centred_bytes(words[index % 4]) * scale);
    }
  });
}

}  // namespace

void lora_uniform(std::span<float> values, float bound, std::uint64_t seed, std::uint32_t stream) {
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const Philox4 bits = random_bits(seed, RandomPurpose::lora_init, stream, i / 4);
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    for (std::size_t k = 0; k < 4 && i + k < values.size(); ++k) {
      // 23 bits and a half: odd multiples of 2^-23, exact in fp32, never the bounds themselves.
      const float unit = (static_cast<float>(words[k] >> 9) + 0.5F) * (1.0F / 4194304.0F) - 1.0F;
      values[i + k] = unit * bound;
    }
  }
}

void dummy_normal(at::Tensor& weight, float standard_deviation, std::uint64_t seed, std::uint32_t stream) {
  Tensor matrix = weight.dim() == 2 ? weight : weight.unsqueeze(0);
  const Rows rows = rows_of(matrix, "weight");
  const float scale = standard_deviation / kBytesDeviation;
  if (weight.is_cuda()) {
    const CudaScope scope(weight);
    cuda::dummy_normal(storage_type(weight, "weight"), device_rows(matrix, "weight"), scale, seed, stream,
                       scope.stream());
  } else if (storage_type(weight, "weight") == Type::f32) {
    fill_normal(matrix.mutable_data_ptr<float>(), rows, scale, seed, stream);
  } else {
    fill_normal(matrix.mutable_data_ptr<c10::BFloat16>(), rows, scale, seed, stream);
  }
}

}  // namespace ranktune::kernels
