#include "model/lora.hpp"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.hpp"
#include "kernels/lora_init.hpp"

namespace ranktune::model {
namespace {

constexpr std::array<std::array<int, 3>, 4> kGroups{{{0, 1, 2}, {3, -1, -1}, {4, 5, -1}, {6, -1, -1}}};

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::string tensor_name(std::int64_t layer, Projection projection, bool is_a) {
  return "base_model.model." + module_name(layer, projection) + (is_a ? ".lora_A.weight" : ".lora_B.weight");
}

std::size_t index_of(std::int64_t layer, Projection projection, bool is_a) {
  return static_cast<std::size_t>(layer * 14 + static_cast<int>(projection) * 2 + (is_a ? 0 : 1));
}

// gradient += alpha * a^T b with fp32 accumulation and result, whatever the type of a and b.
void accumulate_product(const Tensor& gradient, const Tensor& a_transposed, const Tensor& b, double alpha) {
  Tensor target = gradient;
  if (b.scalar_type() == at::kFloat) {
    at::addmm_out(target, target, a_transposed, b, 1, alpha);
  } else {
    at::addmm_out(target, target, a_transposed, b, at::kFloat, 1, alpha);
  }
}

}  // namespace

double LoraConfig::scaling() const {
  return rslora ? alpha / std::sqrt(static_cast<double>(r)) : alpha / static_cast<double>(r);
}

std::string module_name(std::int64_t layer, Projection projection) {
  const auto index = static_cast<std::size_t>(projection);
  return "model.layers." + std::to_string(layer) + "." + kProjectionModules[index] + "." +
         kProjectionNames[index];
}

std::pair<std::int64_t, std::int64_t> projection_shape(const ModelConfig& config, Projection projection) {
  switch (projection) {
    case Projection::q:
      return {config.q_width(), config.hidden_size};
    case Projection::k:
    case Projection::v:
      return {config.kv_width(), config.hidden_size};
    case Projection::o:
      return {config.hidden_size, config.q_width()};
    case Projection::gate:
    case Projection::up:
      return {config.intermediate_size, config.hidden_size};
    case Projection::down:
      return {config.hidden_size, config.intermediate_size};
  }
  throw Failure("unknown projection");
}

bool projection_has_bias(const ModelConfig& config, Projection projection) {
  switch (projection) {
    case Projection::q:
    case Projection::k:
    case Projection::v:
      return config.qkv_bias;
    case Projection::o:
      return config.o_bias;
    case Projection::gate:
    case Projection::up:
    case Projection::down:
      return config.mlp_bias;
  }
  throw Failure("unknown projection");
}

const FlatTensor& FlatLayout::find(std::int64_t layer, Projection projection, bool is_a) const {
  const std::int32_t position = index.at(index_of(layer, projection, is_a));
  RT_CHECK(position >= 0, "no trained matrix " + tensor_name(layer, projection, is_a));
  return tensors[static_cast<std::size_t>(position)];
}

FlatLayout make_flat_layout(const ModelConfig& config, const LoraConfig& lora) {
  FlatLayout layout;
  layout.index.assign(static_cast<std::size_t>(config.layers * 14), -1);
  const auto add = [&](std::int64_t layer, Projection projection, bool is_a) {
    const auto [out, in] = projection_shape(config, projection);
    FlatTensor tensor{tensor_name(layer, projection, is_a),
                      layout.elements,
                      is_a ? lora.r : out,
                      is_a ? in : lora.r,
                      layer,
                      projection,
                      is_a};
    layout.elements += tensor.rows * tensor.columns;
    layout.parameters += tensor.rows * tensor.columns;
    layout.index[index_of(layer, projection, is_a)] = static_cast<std::int32_t>(layout.tensors.size());
    layout.tensors.push_back(std::move(tensor));
  };
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    for (const auto& group : kGroups) {
      for (const bool is_a : {true, false}) {
        for (const int index : group) {
          if (index < 0 || !lora.targets[static_cast<std::size_t>(index)]) continue;
          add(layer, static_cast<Projection>(index), is_a);
          if (!is_a) layout.elements = round_up(layout.elements, 64);
        }
        layout.elements = round_up(layout.elements, 64);
      }
    }
  }
  return layout;
}

FlatBuffers::FlatBuffers(const FlatLayout& layout, std::int64_t world_size, at::Device device,
                         bool fp32_moments) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const std::int64_t tail_length = kernels::tail_nonfinite + world_size;
  master = at::zeros({layout.elements}, options);
  if (fp32_moments) {
    exp_avg = at::zeros({layout.elements}, options);
    exp_avg_sq = at::zeros({layout.elements}, options);
  }
  const std::int64_t stats_length = world_size * kRankStats;
  gradient_and_tail = at::zeros({layout.elements + tail_length + stats_length}, options);
  gradient = gradient_and_tail.narrow(0, 0, layout.elements);
  tail = gradient_and_tail.narrow(0, layout.elements, tail_length);
  rank_stats =
      gradient_and_tail.narrow(0, layout.elements + tail_length, stats_length).view({world_size, kRankStats});
}

void initialise_lora(const FlatLayout& layout, std::uint64_t seed, std::span<float> master) {
  std::uint32_t stream = 0;
  for (const FlatTensor& tensor : layout.tensors) {
    const auto values = master.subspan(static_cast<std::size_t>(tensor.offset),
                                       static_cast<std::size_t>(tensor.rows * tensor.columns));
    if (tensor.is_a) {
      kernels::lora_uniform(values, static_cast<float>(1.0 / std::sqrt(static_cast<double>(tensor.columns))),
                            seed, stream);
    } else {
      std::fill(values.begin(), values.end(), 0.0F);
    }
    ++stream;
  }
}

WideLinear::WideLinear(const ModelConfig& config, const LoraConfig& lora, std::int64_t layer,
                       std::vector<Projection> projections, const at::TensorOptions& options)
    : layer_(layer), rank_(lora.r), scaling_(lora.scaling()) {
  for (const Projection projection : projections) {
    const auto [rows, columns] = projection_shape(config, projection);
    in_ = columns;
    GroupMember member{projection, out_, rows, -1};
    out_ += rows;
    if (lora.adapts(projection)) member.rank_begin = rank_ * adapted_++;
    members_.push_back(member);
  }
  columns_ = round_up(adapted_ * rank_, options.device().is_cuda() ? 64 : 16);
  const auto is_quantised = [&](const GroupMember& member) {
    return config.four_bit && !config.not_quantised.contains(module_name(layer, member.projection));
  };
  if (std::any_of(members_.begin(), members_.end(), is_quantised)) {
    b_ = at::zeros({out_, columns_}, options);
    for (const GroupMember& member : members_) {
      const bool yes = is_quantised(member);
      quantised_.push_back(yes ? kernels::Nf4Matrix(member.out_rows, in_, options.device())
                               : kernels::Nf4Matrix());
      quantised_.back().rows = member.out_rows;
      quantised_.back().columns = in_;
      whole_.push_back(yes ? Tensor() : at::zeros({member.out_rows, in_}, options));
    }
  } else {
    weight_ = at::zeros({out_, in_ + columns_}, options);
    b_ = weight_.narrow(1, in_, columns_);
  }
  a_ = at::zeros({columns_, in_}, options);
  if (projection_has_bias(config, projections.front())) bias_ = at::zeros({out_}, options);
}

const GroupMember& WideLinear::member_of(Projection projection) const {
  for (const GroupMember& member : members_) {
    if (member.projection == projection) return member;
  }
  throw Failure("projection is not in this group");
}

Tensor WideLinear::base(Projection projection) const {
  const GroupMember& member = member_of(projection);
  if (quantised()) return whole_[static_cast<std::size_t>(&member - members_.data())];
  return weight_.narrow(0, member.out_begin, member.out_rows).narrow(1, 0, in_);
}

kernels::Nf4Matrix* WideLinear::nf4(Projection projection) {
  if (!quantised()) return nullptr;
  auto& matrix = quantised_[static_cast<std::size_t>(&member_of(projection) - members_.data())];
  return matrix.packed.defined() ? &matrix : nullptr;
}

void WideLinear::decode(Tensor& weight) const {
  kernels::decode_nf4(quantised_, b_, weight);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!whole_[i].defined()) continue;
    weight.narrow(0, members_[i].out_begin, members_[i].out_rows).narrow(1, 0, in_).copy_(whole_[i]);
  }
}

Tensor WideLinear::bias(Projection projection) const {
  const GroupMember& member = member_of(projection);
  return bias_.defined() ? bias_.narrow(0, member.out_begin, member.out_rows) : Tensor();
}

Tensor WideLinear::columns_of(const Tensor& wide, const GroupMember& member) const {
  return wide.narrow(1, in_ + member.rank_begin, rank_);
}

kernels::DropoutKey WideLinear::key(const GroupMember& member, const DropoutContext& dropout) const {
  return {dropout.p, dropout.seed,
          static_cast<std::uint32_t>(layer_ * 16 + static_cast<int>(member.projection))};
}

void WideLinear::append_segments(const FlatLayout& layout, std::vector<kernels::Segment>& segments) const {
  for (const GroupMember& member : members_) {
    if (member.rank_begin < 0) continue;
    segments.push_back(
        {layout.find(layer_, member.projection, true).offset, a_.narrow(0, member.rank_begin, rank_)});
    segments.push_back({layout.find(layer_, member.projection, false).offset,
                        b_.narrow(0, member.out_begin, member.out_rows).narrow(1, member.rank_begin, rank_)});
  }
}

// X with the mask of one projection's dropout, in the scratch buffer. The mask is its own adjoint.
Tensor WideLinear::dropped(const Tensor& x, const GroupMember& member, const DropoutContext& dropout) const {
  Tensor result = dropout.scratch.narrow(1, 0, in_);
  kernels::dropout(x, key(member, dropout), dropout.step, dropout.sample_of_token, dropout.positions, result);
  return result;
}

void WideLinear::forward(const Tensor& weight, const Tensor& x, Tensor& y,
                         const DropoutContext& dropout) const {
  if (adapted_ > 0) {
    const Tensor base = x.narrow(1, 0, in_);
    Tensor all = x.narrow(1, in_, columns_);
    if (dropout.p > 0) {
      // The pad columns of the weight are zero, but zero times what happens to lie there may be NaN.
      const std::int64_t used = adapted_ * rank_;
      if (used < columns_) all.narrow(1, used, columns_ - used).zero_();
      for (const GroupMember& member : members_) {
        if (member.rank_begin < 0) continue;
        Tensor c = columns_of(x, member);
        at::addmm_out(c, c, dropped(base, member, dropout), a_.narrow(0, member.rank_begin, rank_).t(), 0,
                      scaling_);
      }
    } else {
      at::addmm_out(all, all, base, a_.t(), 0, scaling_);
    }
  }
  if (bias_.defined()) {
    at::addmm_out(y, bias_, x, weight.t());  // on CUDA in the GEMM's epilogue
  } else {
    at::mm_out(y, x, weight.t());
  }
}

void WideLinear::backward(const Tensor& weight, const Tensor& dy, Tensor& dx, bool want_dx,
                          const DropoutContext& dropout) const {
  Tensor dc = dx.narrow(1, in_, columns_);
  if (!want_dx) {
    if (adapted_ > 0) at::mm_out(dc, dy, b_);
    return;
  }
  at::mm_out(dx, dy, weight);
  if (adapted_ == 0) return;
  Tensor dx_base = dx.narrow(1, 0, in_);
  if (dropout.p <= 0) {
    at::addmm_out(dx_base, dx_base, dc, a_, 1, scaling_);
    return;
  }
  for (const GroupMember& member : members_) {
    if (member.rank_begin < 0) continue;
    Tensor part = dropout.scratch.narrow(1, 0, in_);
    at::addmm_out(part, part, columns_of(dx, member), a_.narrow(0, member.rank_begin, rank_), 0, scaling_);
    dx_base.add_(dropped(part, member, dropout));
  }
}

void WideLinear::accumulate_b(const Tensor& dy, const Tensor& c, const FlatLayout& layout,
                              const Tensor& gradient) const {
  for (const GroupMember& member : members_) {
    if (member.rank_begin < 0) continue;
    const FlatTensor& b = layout.find(layer_, member.projection, false);
    accumulate_product(gradient.narrow(0, b.offset, b.rows * b.columns).view({b.rows, b.columns}),
                       dy.narrow(1, member.out_begin, member.out_rows).t(),
                       c.narrow(1, member.rank_begin, rank_), 1.0);
  }
}

void WideLinear::accumulate_a(const Tensor& x, const Tensor& dx, const FlatLayout& layout,
                              const Tensor& gradient, const DropoutContext& dropout) const {
  const Tensor base = x.narrow(1, 0, in_);
  for (const GroupMember& member : members_) {
    if (member.rank_begin < 0) continue;
    const FlatTensor& a = layout.find(layer_, member.projection, true);
    if (dropout.p > 0) {
      accumulate_product(gradient.narrow(0, a.offset, a.rows * a.columns).view({a.rows, a.columns}),
                         columns_of(dx, member).t(), dropped(base, member, dropout), scaling_);
    } else if (member.rank_begin == 0) {
      // The As of a group lie side by side in the flat buffer: one GEMM for all of them.
      const std::int64_t all = adapted_ * rank_;
      accumulate_product(gradient.narrow(0, a.offset, all * in_).view({all, in_}), dx.narrow(1, in_, all).t(),
                         base, scaling_);
    }
  }
}

}  // namespace ranktune::model
