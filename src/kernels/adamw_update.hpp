// One parameter's AdamW update, the same on host and device, in torch.optim.AdamW's order of operations.
#pragma once

#include <cmath>

#include "base/philox.hpp"  // RT_HOST_DEVICE

namespace ranktune::kernels {

struct AdamWFactors {
  float multiplier;  // of the summed gradient: clip / targets
  float decay;       // 1 - learning rate * weight decay
  float blend1;      // 1 - beta1
  float beta2;
  float blend2;  // 1 - beta2
  float eps;
  float root2;  // sqrt(1 - beta2^t)
  float step;   // learning rate / (1 - beta1^t)

  // hyper: learning rate, 1 - beta1^t, 1 - beta2^t.
  RT_HOST_DEVICE AdamWFactors(double beta1, double beta2_, double eps_, double weight_decay,
                              const float* hyper, float multiplier_)
      : multiplier(multiplier_),
        decay(static_cast<float>(1.0 - static_cast<double>(hyper[0]) * weight_decay)),
        blend1(static_cast<float>(1.0 - beta1)),
        beta2(static_cast<float>(beta2_)),
        blend2(static_cast<float>(1.0 - beta2_)),
        eps(static_cast<float>(eps_)),
        root2(static_cast<float>(::sqrt(static_cast<double>(hyper[2])))),
        step(static_cast<float>(static_cast<double>(hyper[0]) / static_cast<double>(hyper[1]))) {}

  RT_HOST_DEVICE inline void update(float summed, float& w, float& m, float& v) const {
    const float g = summed * multiplier;
    w *= decay;
    m += blend1 * (g - m);
    v = beta2 * v + blend2 * g * g;
    const float denominator = ::sqrtf(v) / root2 + eps;
    w -= step * (m / denominator);
  }
};

}  // namespace ranktune::kernels
