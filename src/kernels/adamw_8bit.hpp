// AdamW whose moments are held in 8 bits, blockwise, as bitsandbytes' AdamW8bit does (Dettmers et al. 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/step_layout.hpp"

namespace ranktune::kernels {

using at::Tensor;

// A trained tensor in the flat buffers.
struct FlatSpan {
  std::int64_t offset = 0;
  std::int64_t elements = 0;
};

// The moments of all trained tensors, each cut into blocks of 256 elements from its own start. Tensors under
// 4,096 elements keep fp32 moments. Elements of the flat buffers outside of `tensors` are left alone.
class AdamW8bit {
 public:
  AdamW8bit(const std::vector<FlatSpan>& tensors, std::int64_t flat_elements, at::Device device);

  // As adamw_step (ops.hpp), with the moments of this object. The update uses the new moments before they are
  // rounded.
  void step(const AdamW& settings, const Tensor& hyper, const Tensor& outcome, const Tensor& gradient,
            Tensor& master);

  // Everything that a checkpoint has to hold, by name: exp_avg and exp_avg_sq uint8 [flat elements], their
  // absmax fp32 [blocks], and fp32 moments of the small tensors one behind the other.
  std::vector<std::pair<std::string, Tensor>> state() const;

 private:
  void step_on_cpu(const AdamW& settings, const Tensor& hyper, const Tensor& outcome, const Tensor& gradient,
                   Tensor& master) const;

  std::int64_t flat_elements_;
  Tensor table_;  // int64 [blocks, 3]: offset, elements, place of its fp32 moments or -1
  Tensor maps_;   // fp32 [2, 256]: of exp_avg and of exp_avg_sq
  Tensor exp_avg_, exp_avg_sq_, exp_avg_absmax_, exp_avg_sq_absmax_, small_exp_avg_, small_exp_avg_sq_;
};

}  // namespace ranktune::kernels
