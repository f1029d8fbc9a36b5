// Seeded initial values, a function of (seed, stream, index) alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace ranktune::kernels {

// Uniform in the open interval (-bound, bound), for LoRA's A (PEFT's Kaiming uniform with a = sqrt(5): bound
// 1 / sqrt(in)). Host memory.
void lora_uniform(std::span<float> values, float bound, std::uint64_t seed, std::uint32_t stream);

// Approximately normal with mean 0 and the standard deviation given, for `--load_format dummy`: the centred
// sum of four random bytes, so at most 3.5 standard deviations, and the same values on CPU and CUDA. A
// float32 or bfloat16 vector, or matrix whose rows may be strided. Throws Failure on other tensors.
void dummy_normal(at::Tensor& weight, float standard_deviation, std::uint64_t seed, std::uint32_t stream);

}  // namespace ranktune::kernels
