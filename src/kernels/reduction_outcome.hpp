// What a step's reduction comes to, the same on host and device.
#pragma once

#include <math.h>  // isfinite and sqrt of the global namespace, which CUDA overloads

#include <cstdint>

#include "base/philox.hpp"  // RT_HOST_DEVICE
#include "kernels/step_layout.hpp"

namespace ranktune::kernels {

// squares: the sum of the squared summed gradient. See finish_reduction in ops.hpp.
RT_HOST_DEVICE inline void set_outcome(double squares, const float* tail, std::int64_t slots, double max_norm,
                                       float* outcome) {
  const auto targets = static_cast<double>(tail[tail_targets]);
  const double loss = static_cast<double>(tail[tail_nll]) / targets;
  const double norm = ::sqrt(squares) / targets;
  const double wanted = max_norm / (norm + 1e-6);
  const double clip = max_norm > 0 && wanted < 1.0 ? wanted : 1.0;
  std::int64_t bad_rank = -1;
  for (std::int64_t rank = slots - tail_nonfinite; rank-- > 0;) {
    if (tail[tail_nonfinite + rank] != 0.0F) bad_rank = rank;
  }
  outcome[outcome_loss] = static_cast<float>(loss);
  outcome[outcome_grad_norm] = static_cast<float>(norm);
  outcome[outcome_targets] = tail[tail_targets];
  outcome[outcome_stop] = tail[tail_stop];
  outcome[outcome_tokens] = tail[tail_tokens];
  outcome[outcome_multiplier] = static_cast<float>(clip / targets);
  if (outcome[outcome_bad] != 0.0F) return;  // sticky: the first bad step's rank stays
  const bool finite = isfinite(loss) && isfinite(norm);
  outcome[outcome_bad] = finite && bad_rank < 0 ? 0.0F : 1.0F;
  outcome[outcome_bad_rank] = static_cast<float>(bad_rank);
}

}  // namespace ranktune::kernels
