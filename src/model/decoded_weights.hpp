// The weights of the groups as their GEMMs read them: as they are kept, or decoded from 4 bits into one of
// two buffers, the next one while the GEMM of this one runs.
#pragma once

#include <ATen/ops/empty.h>

#include <array>

#include "model/lora.hpp"
#include "model/side_stream.hpp"

namespace ranktune::model {

class DecodedWeights {
 public:
  explicit DecodedWeights(at::Device device) : ahead_(device) {}

  // Room for groups of at most so many elements, out * (in + P); needed where one is quantised.
  void reserve(std::int64_t elements, const at::TensorOptions& options) {
    for (Tensor& buffer : buffers_) buffer = at::empty({elements}, options);
  }

  // Nothing that was decoded before holds any more: B changes between steps, and a CUDA graph must not depend
  // on what ran before it.
  void begin() { holds_ = {}; }

  // [out, in + P] of a group for work that is enqueued on the current stream before the next call. `next`,
  // where it is known, is decoded behind what the stream holds now.
  Tensor use(const WideLinear& group, const WideLinear* next) {
    if (!group.quantised()) return group.weight();
    std::size_t mine = holds_[0] == &group ? 0 : 1;
    ahead_.join();
    if (holds_[mine] != &group) {
      mine = 1 - last_;
      decode(group, mine);
    }
    last_ = mine;
    if (next != nullptr && next->quantised() && holds_[1 - mine] != next)
      ahead_.run([&] { decode(*next, 1 - mine); });
    return view(group, mine);
  }

 private:
  Tensor view(const WideLinear& group, std::size_t buffer) const {
    return buffers_[buffer].narrow(0, 0, group.out() * group.wide()).view({group.out(), group.wide()});
  }
  void decode(const WideLinear& group, std::size_t buffer) {
    Tensor weight = view(group, buffer);
    group.decode(weight);
    holds_[buffer] = &group;
  }

  std::array<Tensor, 2> buffers_;
  std::array<const WideLinear*, 2> holds_{};
  std::size_t last_ = 0;
  SideStream ahead_;
};

}  // namespace ranktune::model
