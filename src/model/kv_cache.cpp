#include "model/kv_cache.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>

#include <algorithm>

#include "base/error.hpp"

namespace ranktune::model {

KvCache::KvCache(const ModelConfig& config, std::int64_t positions, const at::TensorOptions& options) {
  const std::vector<std::int64_t> shape{config.kv_heads, positions, config.head_dim};
  for (std::int64_t l = 0; l < config.layers; ++l) {
    layers_.push_back({at::empty(shape, options), at::empty(shape, options)});
  }
}

void KvCache::append(std::size_t layer, const at::Tensor& k, const at::Tensor& v) {
  const Layer& held = layers_[layer];
  const std::int64_t tokens = k.size(0);
  RT_CHECK(length_ + tokens <= held.keys.size(1), "a text is longer than what was reserved for it");
  held.keys.narrow(1, length_, tokens).copy_(k.transpose(0, 1));
  held.values.narrow(1, length_, tokens).copy_(v.transpose(0, 1));
}

void KvCache::attend(std::size_t layer, const at::Tensor& q, double scale, std::int64_t window,
                     const at::Tensor& out) const {
  const Layer& held = layers_[layer];
  RT_CHECK(q.size(0) == 1, "one token is attended at a time");
  const std::int64_t kv_heads = held.keys.size(0);
  const std::int64_t group = q.size(1) / kv_heads;
  const std::int64_t end = length_ + 1;
  const std::int64_t begin = window > 0 ? std::max<std::int64_t>(0, end - window) : 0;
  const at::Tensor queries = q.reshape({kv_heads, group, q.size(2)});
  const at::Tensor keys = held.keys.narrow(1, begin, end - begin);
  const at::Tensor scores = at::bmm(queries, keys.transpose(1, 2)).to(at::kFloat).mul_(scale);
  const at::Tensor weights = at::softmax(scores, -1).to(q.scalar_type());
  out.copy_(at::bmm(weights, held.values.narrow(1, begin, end - begin)).view({1, q.size(1) * q.size(2)}));
}

}  // namespace ranktune::model
