// Weights in 4 bits: NF4 with blocks of 64 and double quantisation (Dettmers et al. 2023, "QLoRA"), in the
// layout of bitsandbytes' Linear4bit.
//
// A weight is value[code] * absmax of its block; the absmax of a block is itself
// absmax_map[absmax_code] * nested_absmax + offset, with one nested_absmax for 256 blocks. All products in
// fp32, each rounded, then one rounding to the type that was quantised: the bits of bitsandbytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "kernels/nf4_values.hpp"

namespace ranktune::kernels {

using at::Tensor;

// A matrix [rows, columns] in NF4; columns is a multiple of 64. All tensors on one device.
struct Nf4Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Tensor packed;         // uint8 [rows * columns / 2], row-major, the first of two weights in the high half
  Tensor absmax;         // uint8 [rows * columns / 64], codes
  Tensor nested_absmax;  // fp32 [absmax / 256, rounded up]
  Tensor absmax_map;     // fp32 [256]
  Tensor offset;         // fp32 [1]
  at::ScalarType rounded_to = at::kFloat;  // type that decoded weights are rounded to first; bf16, fp16, fp32

  Nf4Matrix() = default;
  // Room for a matrix, with the map that quantise() uses. Throws Failure where columns is no multiple of 64.
  Nf4Matrix(std::int64_t rows, std::int64_t columns, at::Device device);
};

// Fills the matrix with the nearest codes of `weight` [rows, columns], bf16, fp16 or fp32 on the matrix'
// device; rounded_to becomes `decoded`. The same codes as bitsandbytes, whose
// CPU code (0.50.2) misses the nearest code of one absmax in 600.
void quantise_nf4(const Tensor& weight, at::ScalarType decoded, Nf4Matrix& matrix);

// Decodes matrices with equal columns, one below the other, into `out` [rows of all, columns + P], and copies
// `behind` [rows of all, P] into the last columns. At most 3 matrices. An undefined `packed` leaves the rows
// of that matrix as they are. fp32 on the CPU, fp32 or bf16 on CUDA; rows of `out` may be strided.
void decode_nf4(std::span<const Nf4Matrix> matrices, const Tensor& behind, Tensor& out);

}  // namespace ranktune::kernels
