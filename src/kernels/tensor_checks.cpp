#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = c10::toString(tensor.scalar_type());
  text += tensor.dim() == 0 ? " scalar" : "";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    text += i == 0 ? " [" : ", ";
    text += std::to_string(tensor.size(i));
    text += " (stride ";
    text += std::to_string(tensor.stride(i));
    text += i + 1 == tensor.dim() ? ")]" : ")";
  }
  text += " on ";
  text += tensor.device().str();
  return text;
}

[[noreturn]] void refuse(const char* name, const Tensor& tensor, const std::string& wanted) {
  std::string text = "the tensor '";
  text += name;
  text += "' is ";
  text += describe(tensor);
  text += ", wanted: ";
  text += wanted;
  throw Failure(text);
}

std::string list(at::IntArrayRef sizes) {
  std::string text("[");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += std::to_string(sizes[i]);
  }
  text += "]";
  return text;
}

}  // namespace

void check_tensor(bool fits, const char* name, const Tensor& tensor, const char* wanted) {
  if (!fits) refuse(name, tensor, wanted);
}

Rows rows_of(const Tensor& tensor, const char* name) {
  check_tensor(tensor.defined() && tensor.dim() == 2, name, tensor, "a matrix");
  const bool contiguous_rows = tensor.stride(1) == 1 || tensor.size(1) <= 1;
  const bool apart = tensor.stride(0) >= tensor.size(1) || tensor.size(0) <= 1;
  check_tensor(contiguous_rows && apart, name, tensor, "contiguous rows that do not overlap");
  return {tensor.size(0), tensor.size(1), tensor.size(0) <= 1 ? tensor.size(1) : tensor.stride(0)};
}

Rows rows_of(const Tensor& tensor, const char* name, std::int64_t count, std::int64_t width) {
  const Rows rows = rows_of(tensor, name);
  if (rows.count != count || rows.width != width) refuse(name, tensor, list({count, width}));
  return rows;
}

void check_vector(const Tensor& tensor, const char* name, at::ScalarType type, std::int64_t at_least) {
  if (tensor.defined() && tensor.is_contiguous() && tensor.scalar_type() == type &&
      tensor.numel() >= at_least)
    return;
  std::string wanted("contiguous ");
  wanted += c10::toString(type);
  wanted += ", elements at least ";
  wanted += std::to_string(at_least);
  refuse(name, tensor, wanted);
}

void check_sizes(const Tensor& tensor, const char* name, std::initializer_list<std::int64_t> sizes) {
  const at::IntArrayRef wanted(sizes);
  if (!tensor.defined() || tensor.sizes() != wanted) refuse(name, tensor, list(wanted));
  std::int64_t stride = 1;
  for (std::int64_t i = tensor.dim() - 1; i > 0; --i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != stride)
      refuse(name, tensor, "contiguous but for the first dimension");
    stride *= tensor.size(i);
  }
  if (tensor.size(0) > 1 && tensor.stride(0) < stride)
    refuse(name, tensor, "a first dimension that does not overlap");
}

Type activation_type(const Tensor& tensor, const char* name) {
  check_tensor(tensor.defined(), name, tensor, "a tensor");
  const bool bf16 = tensor.scalar_type() == at::kBFloat16 && tensor.is_cuda();
  check_tensor(bf16 || (tensor.scalar_type() == at::kFloat && (tensor.is_cuda() || tensor.is_cpu())), name,
               tensor, "float32, or bfloat16 on CUDA");
  return bf16 ? Type::bf16 : Type::f32;
}

Type storage_type(const Tensor& tensor, const char* name) {
  check_tensor(tensor.defined(), name, tensor, "a tensor");
  check_tensor(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16, name, tensor,
               "float32 or bfloat16");
  return tensor.scalar_type() == at::kFloat ? Type::f32 : Type::bf16;
}

void check_like(const Tensor& tensor, const char* name, const Tensor& first) {
  check_device(tensor, name, first);
  if (tensor.scalar_type() != first.scalar_type())
    refuse(name, tensor, "the type of the first tensor, " + describe(first));
}

void check_device(const Tensor& tensor, const char* name, const Tensor& first) {
  if (!tensor.defined() || tensor.device() != first.device()) {
    refuse(name, tensor, "the device of the first tensor, " + describe(first));
  }
}

}  // namespace ranktune::kernels
