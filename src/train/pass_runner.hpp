// Runs passes forward and backward; on the GPU in bf16 from CUDA graphs, one for each shape of a pass.
//
// A graph holds compute only, no collective: ranks have different shapes at the same step and so replay
// different graphs. The first pass of a shape runs as it is, the second is captured, later ones are replays.
// Padding to a shape is a function of the batch alone, so the bits do not depend on which of the three
// happened.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>

#include "data/batch.hpp"
#include "model/decoder.hpp"

namespace ranktune::train {

class PassRunner {
 public:
  explicit PassRunner(model::Decoder& decoder);
  ~PassRunner();
  PassRunner(const PassRunner&) = delete;
  PassRunner& operator=(const PassRunner&) = delete;

  // Tokens that the decoder has to reserve for passes of `tokens` real ones.
  std::int64_t padded(std::int64_t tokens) const;
  // Forgets all graphs; before the decoder's buffers move.
  void reset();

  // Adds the gradient of the sum of the batch's token NLLs to `gradient`, that sum to `nll_sum`; see
  // Decoder::forward_backward. The tensors are the same ones at every call.
  void run(const data::PassBatch& batch, const at::Tensor& step, const at::Tensor& gradient,
           at::Tensor& nll_sum);

 private:
  struct Entry;
  Entry& entry_of(const data::PassBatch& batch);
  void capture(Entry& entry, const at::Tensor& step, const at::Tensor& gradient, at::Tensor& nll_sum);

  model::Decoder& decoder_;
  bool graphs_;
  std::list<Entry> entries_;  // used last at the front
};

}  // namespace ranktune::train
