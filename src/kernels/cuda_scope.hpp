// Host side of the CUDA paths: the device made current, its stream, and plain descriptions of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {

// The device of `first` is current as long as this lives.
class CudaScope {
 public:
  explicit CudaScope(const Tensor& first) : guard_(first.device()) {}
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream().stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
};

// The rows of a checked matrix; of one that is undefined: no memory.
inline DeviceRows device_rows(const Tensor& tensor, const char* name) {
  if (!tensor.defined()) return {};
  const Rows rows = rows_of(tensor, name);
  return {const_cast<void*>(tensor.const_data_ptr()), rows.count, rows.width, rows.stride};
}

template <class Element>
Element* device_data(const Tensor& tensor) {
  return tensor.defined() ? static_cast<Element*>(const_cast<void*>(tensor.const_data_ptr())) : nullptr;
}

}  // namespace ranktune::kernels
