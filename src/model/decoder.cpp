#include "model/decoder.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/error.hpp"

namespace ranktune::model {
namespace {

Tensor rows(const Tensor& buffer, std::int64_t count) {
  return buffer.narrow(0, 0, count);
}

// The first rows x columns elements of a flat buffer as a contiguous matrix.
Tensor matrix(const Tensor& flat, std::int64_t row_count, std::int64_t column_count) {
  return flat.narrow(0, 0, row_count * column_count).view({row_count, column_count});
}

// [tokens, count, head_dim] view of the columns from `begin` of rows [tokens, >= begin + count * head_dim].
Tensor heads_of(const Tensor& wide, std::int64_t begin, std::int64_t count, std::int64_t head_dim) {
  return wide.narrow(1, begin, count * head_dim).unflatten(1, {count, head_dim});
}

template <typename Value>
void copy_to(Tensor& destination, const std::vector<Value>& values) {
  constexpr auto type = std::is_same_v<Value, std::int64_t> ? at::kLong : at::kInt;
  const Tensor host =
      at::from_blob(const_cast<Value*>(values.data()), {static_cast<std::int64_t>(values.size())}, type);
  // Pinned, so that the host does not wait for the device; the pinning allocator keeps it until the copy is
  // done.
  destination.copy_(destination.is_cuda() ? host.pin_memory() : host, /*non_blocking=*/true);
}

// Rows of logits held at once: the head's weight is read once a chunk, so few large chunks are good.
std::int64_t logits_chunk(at::Device device, std::int64_t tokens) {
  return std::min<std::int64_t>(tokens, device.is_cuda() ? 2048 : 256);
}

}  // namespace

PassShape exact_shape(const data::PassBatch& batch) {
  return {batch.tokens(), batch.sequences(), batch.target_tokens, batch.max_seqlen};
}

std::int64_t bucket_tokens(std::int64_t tokens) {
  return tokens / 64 * 64 + 64;
}

PassShape bucket_shape(const data::PassBatch& batch) {
  const std::int64_t tokens = bucket_tokens(batch.tokens());
  const auto longest = static_cast<std::uint64_t>(std::max<std::int64_t>(batch.max_seqlen, 128));
  return {tokens, batch.sequences() / 4 * 4 + 4, tokens, static_cast<std::int64_t>(std::bit_ceil(longest))};
}

DevicePass::DevicePass(const data::PassBatch& batch, const PassShape& given_shape, at::Device device)
    : shape(given_shape) {
  const auto ints = at::TensorOptions().device(device).dtype(at::kInt);
  ids = at::empty({shape.tokens}, ints);
  positions = at::empty({shape.tokens}, ints);
  sample_of_token = at::empty({shape.tokens}, ints.dtype(at::kLong));
  target_rows = at::empty({shape.target_rows}, ints.dtype(at::kLong));
  targets = at::empty({shape.target_rows}, ints);
  sequences.cu_seqlens = at::empty({shape.sequences + 1}, ints);
  sequences.host = &cu_seqlens;
  sequences.max_seqlen = shape.max_seqlen;
  load(batch);
}

void DevicePass::load(const data::PassBatch& batch) {
  const std::int64_t real = batch.tokens();
  const std::int64_t padding = shape.tokens - real;
  RT_CHECK(padding >= 0 && batch.sequences() + (padding > 0 ? 1 : 0) <= shape.sequences &&
               batch.max_seqlen <= shape.max_seqlen && batch.target_tokens <= shape.target_rows,
           "a batch does not fit the shape of its pass");
  std::vector<std::int32_t> id_list = batch.ids;
  std::vector<std::int32_t> position_list = batch.positions;
  std::vector<std::int64_t> sample_list(batch.ids.size());
  std::vector<std::int64_t> target_row_list;
  std::vector<std::int32_t> target_list;
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    if (batch.targets[i] < 0) continue;
    target_row_list.push_back(static_cast<std::int64_t>(i));
    target_list.push_back(batch.targets[i]);
  }
  for (std::size_t s = 0; s < batch.samples.size(); ++s) {
    std::fill(sample_list.begin() + batch.cu_seqlens[s], sample_list.begin() + batch.cu_seqlens[s + 1],
              batch.samples[s]);
  }
  for (std::int64_t i = 0; i < padding; ++i) {
    id_list.push_back(0);
    position_list.push_back(static_cast<std::int32_t>(i));
    sample_list.push_back(-1);
  }
  cu_seqlens = batch.cu_seqlens;
  cu_seqlens.resize(static_cast<std::size_t>(shape.sequences + 1), static_cast<std::int32_t>(shape.tokens));
  // Padding rows of the head read the first padding token, get a gradient of exact zero and write it there.
  target_row_list.resize(static_cast<std::size_t>(shape.target_rows), real);
  target_list.resize(static_cast<std::size_t>(shape.target_rows), -1);
  copy_to(ids, id_list);
  copy_to(positions, position_list);
  copy_to(sample_of_token, sample_list);
  copy_to(target_rows, target_row_list);
  copy_to(targets, target_list);
  copy_to(sequences.cu_seqlens, cu_seqlens);
}

std::vector<std::int64_t> WeightSlot::sizes() const {
  if (nf4 != nullptr) return {nf4->rows, nf4->columns};
  return destination.sizes().vec();
}

std::int64_t WeightSlot::bytes() const {
  if (nf4 == nullptr) return static_cast<std::int64_t>(destination.nbytes());
  return static_cast<std::int64_t>(nf4->packed.nbytes() + nf4->absmax.nbytes() + nf4->nested_absmax.nbytes());
}

void WeightSlot::store(const Tensor& values, at::ScalarType type) {
  if (nf4 != nullptr) {
    kernels::quantise_nf4(values.to(type), type, *nf4);
  } else {
    destination.copy_(values);
  }
}

Decoder::Decoder(const ModelConfig& config, const LoraConfig& lora, const DecoderOptions& options)
    : config_(config),
      lora_(lora),
      options_(options),
      layout_(make_flat_layout(config, lora)),
      weights_(options.device),
      side_(options.device) {
  const auto type = at::TensorOptions().dtype(options.dtype).device(options.device);
  const std::int64_t hidden = config.hidden_size;
  if (config.four_bit && options.device.is_cuda() && !config.tied_embeddings) {
    host_embedding_ = at::empty({config.vocab_size, hidden}, type.device(at::kCPU).pinned_memory(true));
    embedding_ = at::from_blob(
        host_embedding_.data_ptr(), host_embedding_.sizes(), [keep = host_embedding_](void*) {}, type,
        options.device);
  } else {
    embedding_ = at::empty({config.vocab_size, hidden}, type);
  }
  final_norm_ = at::empty({hidden}, type);
  head_ = config.tied_embeddings ? embedding_ : at::empty({config.vocab_size, hidden}, type);
  layers_.reserve(static_cast<std::size_t>(config.layers));
  for (std::int64_t l = 0; l < config.layers; ++l) {
    using P = Projection;
    Layer layer{at::empty({hidden}, type),
                at::empty({hidden}, type),
                config.qk_norm ? at::empty({config.head_dim}, type) : Tensor(),
                config.qk_norm ? at::empty({config.head_dim}, type) : Tensor(),
                WideLinear(config, lora, l, {P::q, P::k, P::v}, type),
                WideLinear(config, lora, l, {P::o}, type),
                WideLinear(config, lora, l, {P::gate, P::up}, type),
                WideLinear(config, lora, l, {P::down}, type)};
    layers_.push_back(std::move(layer));
  }
  std::int64_t largest = 0;
  for (const Layer& layer : layers_) {
    for (const WideLinear* group : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      if (group->quantised()) largest = std::max(largest, group->out() * group->wide());
    }
  }
  if (largest > 0) weights_.reserve(largest, type);

  if (config.rope.type != RopeConfig::Type::dynamic) {
    rope_ = rope_table(config.rope, config.head_dim, options.max_positions, options.device);
  }
}

std::vector<WeightSlot> Decoder::weight_slots() {
  using Kind = WeightSlot::Kind;
  const Tensor& embedding = host_embedding_.defined() ? host_embedding_ : embedding_;
  std::vector<WeightSlot> slots{{"model.embed_tokens.weight", embedding, Kind::matrix}};
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".";
    slots.push_back({prefix + "input_layernorm.weight", layer.input_norm, Kind::norm});
    const auto add = [&](WideLinear& group, Projection projection) {
      const std::string name = module_name(static_cast<std::int64_t>(l), projection);
      slots.push_back({name + ".weight", group.base(projection), Kind::matrix, group.nf4(projection)});
      if (const Tensor bias = group.bias(projection); bias.defined()) {
        slots.push_back({name + ".bias", bias, Kind::bias});
      }
    };
    for (const Projection p : {Projection::q, Projection::k, Projection::v}) add(layer.qkv, p);
    if (config_.qk_norm) {
      slots.push_back({prefix + "self_attn.q_norm.weight", layer.q_norm, Kind::norm});
      slots.push_back({prefix + "self_attn.k_norm.weight", layer.k_norm, Kind::norm});
    }
    add(layer.o, Projection::o);
    slots.push_back({prefix + "post_attention_layernorm.weight", layer.post_norm, Kind::norm});
    for (const Projection p : {Projection::gate, Projection::up}) add(layer.gate_up, p);
    add(layer.down, Projection::down);
  }
  slots.push_back({"model.norm.weight", final_norm_, Kind::norm});
  if (!config_.tied_embeddings) slots.push_back({"lm_head.weight", head_, Kind::matrix});
  return slots;
}

std::vector<kernels::Segment> Decoder::segments() const {
  std::vector<kernels::Segment> all;
  for (const Layer& layer : layers_) {
    for (const WideLinear* group : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      group->append_segments(layout_, all);
    }
  }
  return all;
}

Decoder::Workspace Decoder::make_workspace(std::int64_t tokens, std::int64_t recomputed,
                                           at::Device device) const {
  const auto type = at::TensorOptions().dtype(options_.dtype).device(device);
  const auto fp32 = type.dtype(at::kFloat);
  const Layer& first = layers_.front();
  const std::int64_t qk_width = config_.q_width() + config_.kv_width();
  Workspace work;
  const std::size_t blocks = layers_.size() - static_cast<std::size_t>(std::clamp<std::int64_t>(
                                                  recomputed - 1, 0, config_.layers - 1));
  for (std::size_t i = 0; i < blocks; ++i) {
    Activations a;
    a.normed1 = at::empty({tokens, first.qkv.wide()}, type);
    a.rstd1 = at::empty({tokens}, fp32);
    a.qkv = at::empty({tokens, first.qkv.out()}, type);
    if (config_.qk_norm) {
      a.qk = at::empty({tokens, qk_width}, type);
      a.rstd_qk = at::empty({tokens, config_.heads + config_.kv_heads}, fp32);
    }
    a.attended = at::empty({tokens, first.o.wide()}, type);
    a.lse = at::empty({config_.heads * tokens}, fp32);
    a.middle = at::empty({tokens, config_.hidden_size}, type);
    a.normed2 = at::empty({tokens, first.gate_up.wide()}, type);
    a.rstd2 = at::empty({tokens}, fp32);
    a.gate_up = at::empty({tokens, first.gate_up.out()}, type);
    work.blocks.push_back(std::move(a));
  }
  for (std::size_t i = 0; i <= layers_.size(); ++i) {
    work.inputs.push_back(at::empty({tokens, config_.hidden_size}, type));
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    work.down_columns.push_back(at::empty({tokens, first.down.columns()}, type));
  }
  work.activated = at::empty({tokens, first.down.wide()}, type);
  const std::int64_t widest =
      std::max({first.qkv.wide(), first.o.wide(), first.gate_up.wide(), first.down.wide()});
  work.delta = at::empty({tokens, config_.hidden_size}, type);
  work.residual_gradient = at::empty({tokens, config_.hidden_size}, type);
  for (Tensor& gradient : work.wide_gradients) gradient = at::empty({tokens * widest}, type);
  work.output_gradient = at::empty({tokens * std::max(first.qkv.out(), first.gate_up.out())}, type);
  if (lora_.dropout > 0) work.dropout_scratch = at::empty({tokens, widest}, type);
  work.final_normed = at::empty({tokens, config_.hidden_size}, type);
  work.final_rstd = at::empty({tokens}, fp32);
  work.selected = at::empty({tokens, config_.hidden_size}, type);
  const std::int64_t chunk = logits_chunk(options_.device, tokens);
  work.logits = at::empty({chunk, config_.vocab_size}, type);
  work.nll_rows = at::empty({chunk}, fp32);
  if (config_.rope.type == RopeConfig::Type::dynamic) {
    work.rope = empty_dynamic_table(config_.head_dim, tokens, device);
  }
  return work;
}

std::int64_t Decoder::activation_bytes(std::int64_t tokens, std::int64_t recomputed) const {
  const Workspace work = make_workspace(tokens, recomputed, at::kMeta);
  std::int64_t bytes = 0;
  const auto add = [&bytes](const Tensor& tensor) {
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  };
  for (const Activations& a : work.blocks) {
    for (const Tensor* t : {&a.normed1, &a.rstd1, &a.qkv, &a.qk, &a.rstd_qk, &a.attended, &a.lse, &a.middle,
                            &a.normed2, &a.rstd2, &a.gate_up}) {
      add(*t);
    }
  }
  for (const Tensor& t : work.inputs) add(t);
  for (const Tensor& t : work.down_columns) add(t);
  for (const Tensor* t : {&work.activated, &work.delta, &work.residual_gradient, &work.wide_gradients[0],
                          &work.wide_gradients[1], &work.output_gradient, &work.dropout_scratch,
                          &work.final_normed, &work.final_rstd, &work.selected, &work.logits, &work.nll_rows,
                          &work.rope.cosines, &work.rope.sines, &work.rope.rows}) {
    add(*t);
  }
  return bytes;
}

void Decoder::release() {
  work_ = Workspace{};
  capacity_ = 0;
}

void Decoder::reserve(std::int64_t tokens, std::int64_t recomputed) {
  release();  // before the new one is made
  work_ = make_workspace(tokens, recomputed, options_.device);
  capacity_ = tokens;
}

RopeTable Decoder::rope_of(const DevicePass& pass) const {
  if (config_.rope.type != RopeConfig::Type::dynamic) return {rope_.cosines, rope_.sines, pass.positions};
  return {work_.rope.cosines, work_.rope.sines, rows(work_.rope.rows, pass.tokens())};
}

DropoutContext Decoder::dropout_context(const DevicePass& pass, const Tensor& step) const {
  DropoutContext context;
  if (lora_.dropout <= 0 || !step.defined()) return context;
  context.p = lora_.dropout;
  context.seed = options_.dropout_seed;
  context.step = step;
  context.sample_of_token = pass.sample_of_token;
  context.positions = pass.positions;
  context.scratch = rows(work_.dropout_scratch, pass.tokens());
  return context;
}

void Decoder::block_forward(std::size_t index, const Tensor& previous, const DevicePass& pass,
                            const DropoutContext& dropout) {
  const Layer& layer = layers_[index];
  Activations& kept = block(index);
  const std::int64_t tokens = pass.tokens();
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t qk_width = config_.q_width() + config_.kv_width();
  Tensor input = rows(work_.inputs[index], tokens);
  Tensor delta = rows(work_.delta, tokens);

  Tensor normed = rows(kept.normed1, tokens);
  Tensor normed_base = normed.narrow(1, 0, hidden);
  Tensor rstd = rows(kept.rstd1, tokens);
  kernels::add_rms_norm_forward(previous.defined() ? previous : input, previous.defined() ? delta : Tensor(),
                                input, layer.input_norm, config_.rms_norm_eps, normed_base, rstd);
  Tensor qkv = rows(kept.qkv, tokens);
  layer.qkv.forward(weights_.use(layer.qkv, &layer.o), normed, qkv, dropout);

  Tensor qk_in = qkv.narrow(1, 0, qk_width);
  Tensor qk = config_.qk_norm ? rows(kept.qk, tokens) : qk_in;
  Tensor rstd_qk = config_.qk_norm ? rows(kept.rstd_qk, tokens) : Tensor();
  const kernels::HeadShape shape{config_.heads, config_.kv_heads, config_.head_dim};
  const RopeTable rope = rope_of(pass);
  kernels::qk_norm_rope_forward(qk_in, qk, layer.q_norm, layer.k_norm, config_.rms_norm_eps, rope.cosines,
                                rope.sines, rope.rows, shape, rstd_qk);
  Tensor attended = rows(kept.attended, tokens);
  Tensor attended_base = attended.narrow(1, 0, config_.q_width());
  Tensor lse = matrix(kept.lse, config_.heads, tokens);
  kernels::attention_forward(heads_of(qk, 0, config_.heads, config_.head_dim),
                             heads_of(qk, config_.q_width(), config_.kv_heads, config_.head_dim),
                             heads_of(qkv, qk_width, config_.kv_heads, config_.head_dim), pass.sequences,
                             1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
                             config_.window(static_cast<std::int64_t>(index)), attended_base, lse);
  layer.o.forward(weights_.use(layer.o, &layer.gate_up), attended, delta, dropout);

  Tensor middle = rows(kept.middle, tokens);
  Tensor normed2 = rows(kept.normed2, tokens);
  Tensor normed2_base = normed2.narrow(1, 0, hidden);
  Tensor rstd2 = rows(kept.rstd2, tokens);
  kernels::add_rms_norm_forward(input, delta, middle, layer.post_norm, config_.rms_norm_eps, normed2_base,
                                rstd2);
  Tensor gate_up = rows(kept.gate_up, tokens);
  layer.gate_up.forward(weights_.use(layer.gate_up, &layer.down), normed2, gate_up, dropout);
}

void Decoder::down_forward(std::size_t index, const DevicePass& pass, const DropoutContext& dropout) {
  const WideLinear& down = layers_[index].down;
  Tensor activated = rows(work_.activated, pass.tokens());
  Tensor base = activated.narrow(1, 0, config_.intermediate_size);
  kernels::swiglu_forward(rows(block(index).gate_up, pass.tokens()), base);
  Tensor delta = rows(work_.delta, pass.tokens());
  const WideLinear* next = index + 1 < layers_.size() ? &layers_[index + 1].qkv : nullptr;
  down.forward(weights_.use(down, next), activated, delta, dropout);
  if (down.columns() > 0) {
    rows(work_.down_columns[index], pass.tokens()).copy_(activated.narrow(1, down.in(), down.columns()));
  }
}

void Decoder::forward(const DevicePass& pass, const DropoutContext& dropout) {
  const std::int64_t tokens = pass.tokens();
  RT_CHECK(tokens > 0 && tokens <= capacity_, "a pass is larger than what was reserved");
  weights_.begin();
  Tensor input = rows(work_.inputs.front(), tokens);
  kernels::embedding_forward(pass.ids, embedding_, input);
  if (config_.rope.type == RopeConfig::Type::dynamic) {
    fill_dynamic_table(config_.rope, pass.positions, pass.sequences.cu_seqlens, work_.rope);
  }
  Tensor previous;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    block_forward(l, previous, pass, dropout);
    down_forward(l, pass, dropout);
    previous = rows(block(l).middle, tokens);
  }
  Tensor last = rows(work_.inputs.back(), tokens);
  Tensor normed = rows(work_.final_normed, tokens);
  Tensor rstd = rows(work_.final_rstd, tokens);
  kernels::add_rms_norm_forward(previous, rows(work_.delta, tokens), last, final_norm_, config_.rms_norm_eps,
                                normed, rstd);
}

void Decoder::head_loss(const DevicePass& pass, const Tensor& dselected, Tensor& nll_sum) {
  const std::int64_t targets = pass.target_rows.size(0);
  Tensor selected = rows(work_.selected, targets);
  at::index_select_out(selected, rows(work_.final_normed, pass.tokens()), 0, pass.target_rows);
  const std::int64_t chunk = work_.logits.size(0);
  for (std::int64_t begin = 0; begin < targets; begin += chunk) {
    const std::int64_t count = std::min(chunk, targets - begin);
    Tensor logits = rows(work_.logits, count);
    at::mm_out(logits, selected.narrow(0, begin, count), head_.t());
    Tensor nll_rows = rows(work_.nll_rows, count);
    kernels::cross_entropy_in_place(logits, pass.targets.narrow(0, begin, count), nll_rows, nll_sum);
    if (!dselected.defined()) continue;
    Tensor part = dselected.narrow(0, begin, count);
    at::mm_out(part, logits, head_);
  }
}

void Decoder::head_backward(const DevicePass& pass, Tensor& dresidual, Tensor& nll_sum) {
  const std::int64_t tokens = pass.tokens();
  const Tensor dselected = rows(work_.delta, pass.target_rows.size(0));
  head_loss(pass, dselected, nll_sum);
  Tensor dnormed = matrix(work_.wide_gradients[0], tokens, config_.hidden_size);
  dnormed.zero_();
  dnormed.index_copy_(0, pass.target_rows, dselected);
  dresidual.zero_();
  kernels::rms_norm_backward(dnormed, rows(work_.inputs.back(), tokens), final_norm_,
                             rows(work_.final_rstd, tokens), dresidual);
}

void Decoder::attention_half_backward(std::size_t index, const DevicePass& pass,
                                      const DropoutContext& dropout, const Tensor& gradient,
                                      Tensor& dresidual) {
  const Layer& layer = layers_[index];
  Activations& kept = block(index);
  const std::int64_t tokens = pass.tokens();
  const std::int64_t qk_width = config_.q_width() + config_.kv_width();
  const std::int64_t head_dim = config_.head_dim;

  const Tensor attended = rows(kept.attended, tokens);
  Tensor dwide = matrix(work_.wide_gradients[0], tokens, layer.o.wide());
  const bool first = index == 0;  // nothing below the first block is trained
  layer.o.backward(weights_.use(layer.o, first ? nullptr : &layer.qkv), dresidual, dwide, true, dropout);
  side_.join();  // of gate and up, whose output gradient gives way to that of q, k and v
  aside(dropout, [&] {
    layer.o.accumulate_b(dresidual, attended.narrow(1, layer.o.in(), layer.o.columns()), layout_, gradient);
    layer.o.accumulate_a(attended, dwide, layout_, gradient, dropout);
  });

  const Tensor qkv = rows(kept.qkv, tokens);
  const Tensor qk_in = qkv.narrow(1, 0, qk_width);
  const Tensor qk = config_.qk_norm ? rows(kept.qk, tokens) : qk_in;
  Tensor dqkv = matrix(work_.output_gradient, tokens, layer.qkv.out());
  Tensor dq = heads_of(dqkv, 0, config_.heads, head_dim);
  Tensor dk = heads_of(dqkv, config_.q_width(), config_.kv_heads, head_dim);
  Tensor dv = heads_of(dqkv, qk_width, config_.kv_heads, head_dim);
  kernels::attention_backward(
      dwide.narrow(1, 0, config_.q_width()), heads_of(qk, 0, config_.heads, head_dim),
      heads_of(qk, config_.q_width(), config_.kv_heads, head_dim),
      heads_of(qkv, qk_width, config_.kv_heads, head_dim), attended.narrow(1, 0, config_.q_width()),
      matrix(kept.lse, config_.heads, tokens), pass.sequences, 1.0 / std::sqrt(static_cast<double>(head_dim)),
      config_.window(static_cast<std::int64_t>(index)), dq, dk, dv);
  Tensor dqk = dqkv.narrow(1, 0, qk_width);
  const kernels::HeadShape shape{config_.heads, config_.kv_heads, head_dim};
  const RopeTable rope = rope_of(pass);
  kernels::qk_norm_rope_backward(dqk, qk_in, layer.q_norm, layer.k_norm, rope.cosines, rope.sines, rope.rows,
                                 shape, config_.qk_norm ? rows(kept.rstd_qk, tokens) : Tensor());

  const Tensor normed = rows(kept.normed1, tokens);
  Tensor dnormed = matrix(work_.wide_gradients[1], tokens, layer.qkv.wide());
  Tensor weight;
  if (!first) {
    const Layer& below = layers_[index - 1];
    weight = weights_.use(layer.qkv, index <= last_sharing() ? &below.qkv : &below.down);
  }
  layer.qkv.backward(weight, dqkv, dnormed, !first, dropout);
  side_.join();  // of o, which reads the residual gradient
  aside(dropout, [&] {
    layer.qkv.accumulate_b(dqkv, normed.narrow(1, layer.qkv.in(), layer.qkv.columns()), layout_, gradient);
    layer.qkv.accumulate_a(normed, dnormed, layout_, gradient, dropout);
  });
  if (first) return;
  kernels::rms_norm_backward(dnormed.narrow(1, 0, config_.hidden_size), rows(work_.inputs[index], tokens),
                             layer.input_norm, rows(kept.rstd1, tokens), dresidual);
}

void Decoder::block_backward(std::size_t index, const DevicePass& pass, const DropoutContext& dropout,
                             const Tensor& gradient, Tensor& dresidual) {
  const Layer& layer = layers_[index];
  Activations& kept = block(index);
  const std::int64_t tokens = pass.tokens();

  // Groups take turns with the two wide gradients, and what runs aside is waited for before anything that it
  // reads is written over.
  Tensor dactivated = matrix(work_.wide_gradients[0], tokens, layer.down.wide());
  layer.down.backward(weights_.use(layer.down, &layer.gate_up), dresidual, dactivated, true, dropout);
  Tensor dgate_up = matrix(work_.output_gradient, tokens, layer.gate_up.out());
  Tensor activated = rows(work_.activated, tokens).narrow(1, 0, config_.intermediate_size);
  side_.join();  // of q, k and v of the block above, whose output gradient gives way to that of gate and up
  kernels::swiglu_backward(dactivated.narrow(1, 0, config_.intermediate_size), rows(kept.gate_up, tokens),
                           dgate_up, activated);
  aside(dropout, [&] {
    layer.down.accumulate_b(dresidual, rows(work_.down_columns[index], tokens), layout_, gradient);
    layer.down.accumulate_a(activated, dactivated, layout_, gradient, dropout);
  });
  const Tensor normed = rows(kept.normed2, tokens);
  Tensor dnormed = matrix(work_.wide_gradients[1], tokens, layer.gate_up.wide());
  layer.gate_up.backward(weights_.use(layer.gate_up, &layer.o), dgate_up, dnormed, true, dropout);
  side_.join();  // of down, which reads the residual gradient
  aside(dropout, [&] {
    layer.gate_up.accumulate_b(dgate_up, normed.narrow(1, layer.gate_up.in(), layer.gate_up.columns()),
                               layout_, gradient);
    layer.gate_up.accumulate_a(normed, dnormed, layout_, gradient, dropout);
  });
  kernels::rms_norm_backward(dnormed.narrow(1, 0, config_.hidden_size), rows(kept.middle, tokens),
                             layer.post_norm, rows(kept.rstd2, tokens), dresidual);
  attention_half_backward(index, pass, dropout, gradient, dresidual);
}

void Decoder::forward_backward(const DevicePass& pass, const Tensor& step, const Tensor& gradient,
                               Tensor& nll_sum) {
  const DropoutContext dropout = dropout_context(pass, step);
  forward(pass, dropout);
  Tensor dresidual = rows(work_.residual_gradient, pass.tokens());
  head_backward(pass, dresidual, nll_sum);
  for (std::size_t l = layers_.size(); l-- > 0;) {
    // Of the blocks that share their activations the last one's are still there.
    if (l < last_sharing()) {
      side_.join();
      block_forward(l, Tensor(), pass, dropout);
    }
    block_backward(l, pass, dropout, gradient, dresidual);
  }
  side_.join();
}

void Decoder::evaluate(const DevicePass& pass, Tensor& nll_sum) {
  forward(pass, DropoutContext{});
  head_loss(pass, Tensor(), nll_sum);
}

Tensor Decoder::logits(const DevicePass& pass) {
  forward(pass, DropoutContext{});
  Tensor result = at::empty({pass.tokens(), config_.vocab_size}, rows(work_.final_normed, 1).options());
  at::mm_out(result, rows(work_.final_normed, pass.tokens()), head_.t());
  return result.to(at::kFloat);
}

}  // namespace ranktune::model
