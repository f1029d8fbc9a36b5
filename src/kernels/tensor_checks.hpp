// What every operation checks about its tensors before it touches their memory. All throw Failure naming the
// tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.hpp"
#include "kernels/types.hpp"

namespace ranktune::kernels {

using at::Tensor;

// Throws unless `fits`.
void check_tensor(bool fits, const char* name, const Tensor& tensor, const char* wanted);

// A matrix with contiguous rows that do not overlap.
Rows rows_of(const Tensor& tensor, const char* name);

// The same, of the given size.
Rows rows_of(const Tensor& tensor, const char* name, std::int64_t count, std::int64_t width);

// Contiguous, of this type, with at least so many elements.
void check_vector(const Tensor& tensor, const char* name, at::ScalarType type, std::int64_t at_least);

// The given sizes, everything but the first dimension contiguous.
void check_sizes(const Tensor& tensor, const char* name, std::initializer_list<std::int64_t> sizes);

// fp32 on the CPU, fp32 or bf16 on CUDA.
Type activation_type(const Tensor& tensor, const char* name);

// fp32 or bf16 anywhere.
Type storage_type(const Tensor& tensor, const char* name);

// The type and device, or the device, of the operation's first tensor.
void check_like(const Tensor& tensor, const char* name, const Tensor& first);
void check_device(const Tensor& tensor, const char* name, const Tensor& first);

}  // namespace ranktune::kernels
