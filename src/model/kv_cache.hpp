// Keys and values of the tokens of one text so far, for writing it on token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/config.hpp"

namespace ranktune::model {

class KvCache {
 public:
  // Room for `positions` tokens.
  KvCache(const ModelConfig& config, std::int64_t positions, const at::TensorOptions& options);

  std::int64_t length() const { return length_; }  // tokens held
  // Adds the tokens of a pass to a layer: k, v [tokens, kv_heads, head_dim], k rotated. The length is the
  // same until advance(), which comes when all layers have them.
  void append(std::size_t layer, const at::Tensor& k, const at::Tensor& v);
  void advance(std::int64_t tokens) { length_ += tokens; }

  // Attention of the one token that was appended last: q [1, heads, head_dim], out [1, heads * head_dim]. It
  // sees the last `window` tokens, itself included; 0: all.
  void attend(std::size_t layer, const at::Tensor& q, double scale, std::int64_t window,
              const at::Tensor& out) const;

 private:
  struct Layer {
    at::Tensor keys, values;  // [kv_heads, positions, head_dim]
  };
  std::vector<Layer> layers_;
  std::int64_t length_ = 0;
};

}  // namespace ranktune::model
