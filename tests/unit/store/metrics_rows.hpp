// Rows whose every field follows from the step, so that a test can tell a whole row from a torn one.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "store/metrics.hpp"

namespace ranktune::testing {

inline store::StepRow step_row(std::int64_t step, double loss_offset = 0) {
  const auto x = static_cast<double>(step);
  return {step,     x / 100, 8,        100 * step, 90 * step, 2.0 + 1 / x + loss_offset,
          1e-4 / x, 0.5 + x, 0.25 + x, 0.01 * x,   0.2 * x,   0.04 * x};
}

inline bool same(const store::StepRow& a, const store::StepRow& b) {
  return a.step == b.step && a.epoch == b.epoch && a.samples == b.samples && a.tokens == b.tokens &&
         a.target_tokens == b.target_tokens && a.loss == b.loss && a.learning_rate == b.learning_rate &&
         a.grad_norm == b.grad_norm && a.step_seconds == b.step_seconds && a.data_seconds == b.data_seconds &&
         a.compute_seconds == b.compute_seconds && a.communication_seconds == b.communication_seconds;
}

inline std::vector<store::RankRow> rank_rows(std::int64_t step) {
  return {{step, 0, 50 * step, 0.2, 0.01, 1000 + step}, {step, 1, 50 * step, 0.19, 0.02, 2000 + step}};
}

inline store::Provenance provenance() {
  return {{{"software", "ranktune"}, {"command_line", "ranktune train --model_name=m"}, {"hosts", "n1,n2"}},
          {{"seed", 3407}, {"world_size", 2}}};
}

}  // namespace ranktune::testing
