#include "kernels/nf4.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/dynamic_map.hpp"
#include "kernels/nf4_launch.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

constexpr std::size_t kMostMatrices = 3;

// Between each value and the next, in fp32: a number on a boundary gets the lower code.
Tensor boundaries(const float* values, std::int64_t count, at::Device device) {
  std::vector<float> between;
  for (std::int64_t i = 0; i + 1 < count; ++i) between.push_back((values[i] + values[i + 1]) / 2);
  return at::from_blob(between.data(), {count - 1}, at::kFloat).to(device, at::kFloat, false, /*copy=*/true);
}

// bitsandbytes decodes with the map's own least value, though it rounds as if that were -1.
std::array<float, kDynamicCodes> decoding_map() {
  std::array<float, kDynamicCodes> map{};
  std::copy_n(dynamic_map(true), kDynamicCodes, map.begin());
  map.front() = -map[kDynamicCodes - 2];
  return map;
}

// Codes of the values of rows [blocks, block], each divided by the row's absmax.
Tensor codes_of(const Tensor& blocks, const Tensor& absmax, const Tensor& bounds) {
  const Tensor scaled = (blocks * absmax.clamp_min(1e-38).reciprocal().unsqueeze(1)).clamp_(-1, 1);
  return at::bucketize(scaled, bounds, /*out_int32=*/true).to(at::kByte);
}

int rounding_of(at::ScalarType type) {
  if (type == at::kFloat) return 0;
  if (type == at::kBFloat16) return 1;
  RT_CHECK(type == at::kHalf, "weights are rounded to fp32, bf16 or fp16");
  return 2;
}

float rounded(float x, int to) {
  if (to == 1) return static_cast<float>(c10::BFloat16(x));
  if (to == 2) return static_cast<float>(c10::Half(x));
  return x;
}

void check_matrix(const Nf4Matrix& matrix, const Tensor& out) {
  const std::int64_t weights = matrix.rows * matrix.columns;
  const std::int64_t blocks = weights / kNf4Block;
  check_vector(matrix.packed, "packed", at::kByte, weights / 2);
  check_vector(matrix.absmax, "absmax", at::kByte, blocks);
  check_vector(matrix.nested_absmax, "nested_absmax", at::kFloat,
               (blocks + kNf4NestedBlock - 1) / kNf4NestedBlock);
  check_vector(matrix.absmax_map, "absmax_map", at::kFloat, kDynamicCodes);
  check_vector(matrix.offset, "offset", at::kFloat, 1);
  for (const Tensor* tensor :
       {&matrix.packed, &matrix.absmax, &matrix.nested_absmax, &matrix.absmax_map, &matrix.offset}) {
    check_device(*tensor, "an NF4 matrix", out);
  }
}

void decode_on_cpu(const Nf4Matrix& matrix, float* out, std::int64_t stride) {
  const auto* packed = matrix.packed.const_data_ptr<std::uint8_t>();
  const auto* absmax = matrix.absmax.const_data_ptr<std::uint8_t>();
  const auto* nested = matrix.nested_absmax.const_data_ptr<float>();
  const auto* map = matrix.absmax_map.const_data_ptr<float>();
  const float offset = *matrix.offset.const_data_ptr<float>();
  const int to = rounding_of(matrix.rounded_to);
  const std::int64_t per_row = matrix.columns / kNf4Block;
  for_each_row(matrix.rows, 2 * matrix.columns, [&](std::int64_t row) {
    for (std::int64_t b = 0; b < per_row; ++b) {
      const std::int64_t block = row * per_row + b;
      const float product = map[absmax[block]] * nested[block / kNf4NestedBlock];
      const float scale = product + offset;
      const std::uint8_t* codes = packed + block * (kNf4Block / 2);
      float* target = out + row * stride + b * kNf4Block;
      for (std::int64_t i = 0; i < kNf4Block / 2; ++i) {
        target[2 * i] = rounded(kNf4Values[codes[i] >> 4] * scale, to);
        target[2 * i + 1] = rounded(kNf4Values[codes[i] & 15] * scale, to);
      }
    }
  });
}

}  // namespace

Nf4Matrix::Nf4Matrix(std::int64_t row_count, std::int64_t column_count, at::Device device)
    : rows(row_count), columns(column_count) {
  RT_CHECK(columns % kNf4Block == 0, "the columns of an NF4 matrix are a multiple of 64");
  const std::int64_t blocks = rows * columns / kNf4Block;
  const auto bytes = at::TensorOptions(at::kByte).device(device);
  packed = at::empty({rows * columns / 2}, bytes);
  absmax = at::empty({blocks}, bytes);
  nested_absmax = at::empty({(blocks + kNf4NestedBlock - 1) / kNf4NestedBlock}, bytes.dtype(at::kFloat));
  offset = at::empty({1}, bytes.dtype(at::kFloat));
  absmax_map = at::empty({kDynamicCodes}, bytes.dtype(at::kFloat));
  if (device.is_meta()) return;
  static const auto map = decoding_map();
  absmax_map.copy_(at::from_blob(const_cast<float*>(map.data()), {kDynamicCodes}, at::kFloat));
}

void quantise_nf4(const Tensor& weight, at::ScalarType decoded, Nf4Matrix& matrix) {
  check_sizes(weight, "weight", {matrix.rows, matrix.columns});
  check_device(weight, "weight", matrix.packed);
  constexpr std::int64_t kSlice = std::int64_t{1} << 16;  // blocks at once, which bounds the temporaries
  const Tensor blocks = weight.view({-1, kNf4Block});
  const Tensor bounds = boundaries(kNf4Values.data(), 16, weight.device());
  const std::int64_t count = blocks.size(0);
  const Tensor absmax = at::empty({count}, weight.options().dtype(at::kFloat));
  for (std::int64_t begin = 0; begin < count; begin += kSlice) {
    const std::int64_t length = std::min(kSlice, count - begin);
    const Tensor part = blocks.narrow(0, begin, length).to(at::kFloat);
    const Tensor largest = part.abs().amax(1);
    absmax.narrow(0, begin, length).copy_(largest);
    const Tensor codes = codes_of(part, largest, bounds).view({-1, 2});
    matrix.packed.narrow(0, begin * kNf4Block / 2, length * kNf4Block / 2)
        .copy_(codes.select(1, 0) * 16 + codes.select(1, 1));
  }
  matrix.offset.copy_(absmax.mean().view({1}));
  // Blocks of 256, the last one filled up with zeros that change no absmax.
  const std::int64_t nested = matrix.nested_absmax.numel();
  const Tensor centred = at::empty({nested * kNf4NestedBlock}, absmax.options()).zero_();
  centred.narrow(0, 0, count).copy_(absmax - matrix.offset);
  const Tensor rows = centred.view({nested, kNf4NestedBlock});
  matrix.nested_absmax.copy_(rows.abs().amax(1));
  const Tensor map_bounds = boundaries(dynamic_map(true), kDynamicCodes, weight.device());
  matrix.absmax.copy_(codes_of(rows, matrix.nested_absmax, map_bounds).view({-1}).narrow(0, 0, count));
  matrix.rounded_to = decoded;
}

void decode_nf4(std::span<const Nf4Matrix> matrices, const Tensor& behind, Tensor& out) {
  RT_CHECK(!matrices.empty() && matrices.size() <= kMostMatrices, "1 to 3 NF4 matrices are decoded at once");
  const Type type = activation_type(out, "out");
  const std::int64_t columns = matrices.front().columns;
  const std::int64_t more = behind.defined() ? behind.size(1) : 0;
  std::int64_t rows = 0;
  cuda::Nf4Group group;
  for (const Nf4Matrix& matrix : matrices) {
    RT_CHECK(matrix.columns == columns, "NF4 matrices one below the other have equal columns");
    auto& part = group.parts[group.count++];
    part.first_row = rows;
    rows += matrix.rows;
    if (!matrix.packed.defined()) continue;
    check_matrix(matrix, out);
    part.packed = device_data<std::uint8_t>(matrix.packed);
    part.absmax = device_data<std::uint8_t>(matrix.absmax);
    part.nested_absmax = device_data<float>(matrix.nested_absmax);
    part.absmax_map = device_data<float>(matrix.absmax_map);
    part.offset = device_data<float>(matrix.offset);
    part.rounded_to = rounding_of(matrix.rounded_to);
  }
  const Rows target = rows_of(out, "out", rows, columns + more);
  if (more > 0) {
    rows_of(behind, "behind", rows, more);
    check_like(behind, "behind", out);
  }
  if (out.is_cuda()) {
    RT_CHECK(more % 8 == 0 && target.stride % 8 == 0,
             "rows of decoded weights can be written 16 bytes at a time");
    const CudaScope scope(out);
    cuda::decode_nf4(type, group, columns, more > 0 ? device_rows(behind, "behind") : DeviceRows{},
                     device_rows(out, "out"), scope.stream());
    return;
  }
  auto* data = out.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].packed.defined())
      decode_on_cpu(matrices[i], data + group.parts[i].first_row * target.stride, target.stride);
  }
  if (more > 0) out.narrow(1, columns, more).copy_(behind);
}

}  // namespace ranktune::kernels
