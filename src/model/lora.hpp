// LoRA (Hu et al. 2021) as extra columns of the base weights, and the flat fp32 buffers its parameters live
// in.
//
// The projections that read the same input form a group (q, k, v; o; gate, up; down) and are one GEMM. A
// group keeps
//   weight [out, in + P]   base weight, then B of each adapted projection in its own rows and columns; with a
//                          4-bit base B alone is kept as [out, P] and the whole is decoded when it is used
//   a      [P, in]         the A of each adapted projection stacked
// and its input as [tokens, in + P], whose last P columns hold c = s * X A^T, so that Y = Xwide * weight^T is
// the adapted output. Backward, with dY given: dXwide = dY * weight yields dX's base part and dc = dY B at
// once; then
//   dX += s * dc A,   dB = dY^T c,   dA = s * dc^T X.
// P is the sum of the ranks rounded up (to 64 on the GPU, 16 on the CPU); off-diagonal and pad columns are
// zero for ever.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/nf4.hpp"
#include "kernels/ops.hpp"
#include "model/config.hpp"

namespace ranktune::model {

using at::Tensor;

enum class Projection : std::uint8_t { q, k, v, o, gate, up, down };
inline constexpr std::array<const char*, 7> kProjectionNames{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                             "gate_proj", "up_proj", "down_proj"};
inline constexpr std::array<const char*, 7> kProjectionModules{
    "self_attn", "self_attn", "self_attn", "self_attn", "mlp", "mlp", "mlp"};

struct LoraConfig {
  std::int64_t r = 16;
  double alpha = 16;
  bool rslora = false;
  double dropout = 0;
  std::array<bool, 7> targets{true, true, true, true, true, true, true};

  double scaling() const;  // alpha / r, or alpha / sqrt(r)
  bool adapts(Projection projection) const { return targets[static_cast<std::size_t>(projection)]; }
};

// A projection's name in Transformers, for example model.layers.3.mlp.down_proj.
std::string module_name(std::int64_t layer, Projection projection);

// Shape [out, in] of a projection's base weight.
std::pair<std::int64_t, std::int64_t> projection_shape(const ModelConfig& config, Projection projection);
bool projection_has_bias(const ModelConfig& config, Projection projection);

// A trained matrix in the flat buffers.
struct FlatTensor {
  std::string name;  // PEFT's, for example base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight
  std::int64_t offset = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t layer = 0;
  Projection projection = Projection::q;
  bool is_a = true;
};

// Where everything trained lies: layer by layer, group by group the As together, then the Bs. Each block
// starts at a multiple of 64 elements; the gaps stay zero.
struct FlatLayout {
  std::vector<FlatTensor> tensors;
  std::int64_t elements = 0;        // length of each flat buffer, gaps included
  std::int64_t parameters = 0;      // without gaps
  std::vector<std::int32_t> index;  // into tensors, by (layer, projection, is_a); -1 where not adapted
  const FlatTensor& find(std::int64_t layer, Projection projection, bool is_a) const;  // throws Failure
};
FlatLayout make_flat_layout(const ModelConfig& config, const LoraConfig& lora);

inline constexpr std::int64_t kRankStats = 5;

// fp32 [elements] each; the gradient has a tail behind it that is summed over ranks together with it.
struct FlatBuffers {
  // Without fp32_moments the moments are left undefined, for an optimizer that keeps its own.
  FlatBuffers(const FlatLayout& layout, std::int64_t world_size, at::Device device, bool fp32_moments = true);
  Tensor master;
  Tensor gradient_and_tail;  // [elements + tail]
  Tensor gradient;           // view of the first `elements`
  Tensor tail;               // view: TailSlot
  Tensor rank_stats;  // view [world_size, kRankStats]: each rank fills its own row, the others' rows are zero
  Tensor exp_avg;
  Tensor exp_avg_sq;
};

// PEFT's initialisation in distribution: A uniform in (-1/sqrt(in), 1/sqrt(in)), B zero; drawn from Philox by
// (seed, position of the tensor), whatever the device. `master` lies on the host.
void initialise_lora(const FlatLayout& layout, std::uint64_t seed, std::span<float> master);

// One adapted projection inside a group.
struct GroupMember {
  Projection projection;
  std::int64_t out_begin;  // rows of the group's weight
  std::int64_t out_rows;
  std::int64_t rank_begin;  // columns behind `in`; -1 where it is not adapted
};

// What dropout needs to know about the tokens of a pass.
struct DropoutContext {
  double p = 0;
  std::uint64_t seed = 0;
  Tensor step;             // int64 [1]
  Tensor sample_of_token;  // int64 [T]
  Tensor positions;        // int32 [T]
  Tensor scratch;          // [T, widest input]
};

// A group of projections with a common input; forward and backward written out.
class WideLinear {
 public:
  WideLinear(const ModelConfig& config, const LoraConfig& lora, std::int64_t layer,
             std::vector<Projection> projections, const at::TensorOptions& options);

  std::int64_t in() const { return in_; }
  std::int64_t out() const { return out_; }
  std::int64_t columns() const { return columns_; }     // P
  std::int64_t wide() const { return in_ + columns_; }  // row length of the input buffer

  // Base weight rows of a member: a view [out_rows, in] to load into; undefined where nf4() is the place.
  Tensor base(Projection projection) const;
  // The 4-bit base weight of a member, to be filled; null where it is kept whole.
  kernels::Nf4Matrix* nf4(Projection projection);

  // Whether the weight has to be decoded before each use.
  bool quantised() const { return !quantised_.empty(); }
  // [out, in + P] as it is kept; undefined where quantised().
  const Tensor& weight() const { return weight_; }
  // Writes it to `weight` [out, in + P].
  void decode(Tensor& weight) const;

  // A view [out_rows] to load its bias into; undefined where the group has none.
  Tensor bias(Projection projection) const;
  // Destinations of this group's trained matrices.
  void append_segments(const FlatLayout& layout, std::vector<kernels::Segment>& segments) const;

  // `weight` is weight() or what decode() wrote.
  // x: rows [T, in + P], the first `in` columns filled; fills the last P and writes y [T, out].
  void forward(const Tensor& weight, const Tensor& x, Tensor& y, const DropoutContext& dropout) const;
  // dx: rows [T, in + P]; on return its first `in` columns are dX, unless !want_dx, its last P columns dc.
  // Without want_dx the weight is not read and may be undefined.
  void backward(const Tensor& weight, const Tensor& dy, Tensor& dx, bool want_dx,
                const DropoutContext& dropout) const;
  // Adds dB to the flat gradient. c: rows [T, P], the last columns of the forward's x.
  void accumulate_b(const Tensor& dy, const Tensor& c, const FlatLayout& layout,
                    const Tensor& gradient) const;
  // Adds dA to the flat gradient. x: rows [T, >= in]; dx: with backward's dc in its last P columns.
  void accumulate_a(const Tensor& x, const Tensor& dx, const FlatLayout& layout, const Tensor& gradient,
                    const DropoutContext& dropout) const;

 private:
  const GroupMember& member_of(Projection projection) const;
  Tensor columns_of(const Tensor& wide, const GroupMember& member) const;
  Tensor dropped(const Tensor& x, const GroupMember& member, const DropoutContext& dropout) const;
  kernels::DropoutKey key(const GroupMember& member, const DropoutContext& dropout) const;

  std::int64_t layer_;
  std::int64_t in_ = 0;
  std::int64_t out_ = 0;
  std::int64_t rank_ = 0;
  std::int64_t adapted_ = 0;
  std::int64_t columns_ = 0;
  double scaling_ = 1;
  std::vector<GroupMember> members_;
  Tensor weight_;                              // [out, in + P]; undefined with a 4-bit base
  Tensor b_;                                   // [out, P]: the last columns of weight_, or memory of its own
  std::vector<kernels::Nf4Matrix> quantised_;  // one per member; empty: none is quantised
  std::vector<Tensor> whole_;  // [out_rows, in] of the members that are not, beside those that are
  Tensor a_;                   // [P, in]
  Tensor bias_;                // [out], frozen; undefined: none
};

}  // namespace ranktune::model
