// The small arrays that a step hands around, and AdamW's settings: plain types that host and CUDA code share.
#pragma once

#include <cstdint>

namespace ranktune::kernels {

// Layout of the fp32 tail that is summed over ranks behind the gradient.
enum TailSlot : std::int64_t {
  tail_nll = 0,
  tail_targets = 1,
  tail_stop = 2,
  tail_tokens = 3,
  tail_nonfinite = 4  // + rank
};

// What the host reads back of a step, fp32 [8].
enum OutcomeSlot : std::int64_t {
  outcome_loss = 0,
  outcome_grad_norm = 1,
  outcome_targets = 2,
  outcome_stop = 3,
  outcome_tokens = 4,
  outcome_multiplier = 5,  // what AdamW multiplies the summed gradient with: clip / targets
  // 1 from the first step on whose loss or gradient was not finite (sticky): AdamW does nothing.
  outcome_bad = 6,
  outcome_bad_rank = 7  // rank whose own gradient or loss was not finite first, -1 if none
};

// Settings of torch.optim.AdamW.
struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

}  // namespace ranktune::kernels
