// The decoder: frozen base weights, forward and backward written out layer by layer, no autograd.
//
// A pass runs over `T` tokens of several samples laid end to end. What the backward pass needs is kept in
// buffers reserved once; of the first `recomputed` blocks only the input is kept and their forward runs
// again. SwiGLU's output is never kept: its backward writes it once more.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/batch.hpp"
#include "kernels/ops.hpp"
#include "model/config.hpp"
#include "model/decoded_weights.hpp"
#include "model/lora.hpp"
#include "model/side_stream.hpp"

namespace ranktune::model {

// A base tensor to be loaded: its name in the model folder and the (perhaps strided) view it goes to, or the
// 4-bit matrix that is made of it.
struct WeightSlot {
  enum class Kind : std::uint8_t { matrix, norm, bias };
  std::string name;
  Tensor destination;  // undefined where nf4 is the place
  Kind kind = Kind::matrix;
  kernels::Nf4Matrix* nf4 = nullptr;

  std::vector<std::int64_t> sizes() const;
  // Bytes that the tensor takes here.
  std::int64_t bytes() const;
  // Takes values [sizes()] on the decoder's device, of any floating-point type; `type` is the decoder's.
  void store(const Tensor& values, at::ScalarType type);
};

// Sizes of a pass as the device sees it. Padding is one more sequence of its own without targets, so it
// changes no sum.
struct PassShape {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t target_rows = 0;
  std::int64_t max_seqlen = 0;
  auto operator<=>(const PassShape&) const = default;
};
// The pass as it is, without padding.
PassShape exact_shape(const data::PassBatch& batch);
// Rounded up to few different shapes, each of which can be captured in a CUDA graph: tokens to a multiple of
// 64 above the real number, sequences to a multiple of 4, the longest sequence to a power of two; every row
// is a target row.
PassShape bucket_shape(const data::PassBatch& batch);
std::int64_t bucket_tokens(std::int64_t tokens);

// A pass on the device.
struct DevicePass {
  PassShape shape;
  Tensor ids;              // int32 [tokens]
  Tensor positions;        // int32 [tokens]
  Tensor sample_of_token;  // int64 [tokens]
  Tensor target_rows;      // int64 [target_rows], the rows that have a target
  Tensor targets;          // int32 [target_rows], -1 where it is padding
  kernels::Sequences sequences;
  std::vector<std::int32_t> cu_seqlens;  // host copy that `sequences` points to

  DevicePass(const data::PassBatch& batch, const PassShape& shape, at::Device device);
  DevicePass(const DevicePass&) = delete;
  DevicePass& operator=(const DevicePass&) = delete;
  // Fills the same buffers with another batch that fits the shape; enqueued, the host does not wait.
  void load(const data::PassBatch& batch);
  std::int64_t tokens() const { return shape.tokens; }
};

struct DecoderOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  std::int64_t max_positions = 2048;  // longest sample
  std::uint64_t dropout_seed = 0;
};

class Decoder {
 public:
  Decoder(const ModelConfig& config, const LoraConfig& lora, const DecoderOptions& options);

  const ModelConfig& config() const { return config_; }
  const LoraConfig& lora() const { return lora_; }
  const FlatLayout& layout() const { return layout_; }
  const DecoderOptions& options() const { return options_; }

  // Every base tensor, in the order of the layers.
  std::vector<WeightSlot> weight_slots();
  // Where the trained matrices are read by the GEMMs; the views stay valid as long as the decoder.
  std::vector<kernels::Segment> segments() const;

  // Reserves activations for passes of at most `tokens` tokens. The first `recomputed` blocks share one set
  // of them (so that one is as good as none).
  void reserve(std::int64_t tokens, std::int64_t recomputed);
  // Gives the activations back; reserve() is needed before the next pass.
  void release();
  // Bytes that reserve(tokens, recomputed) takes.
  std::int64_t activation_bytes(std::int64_t tokens, std::int64_t recomputed) const;

  // Adds the gradient of the SUM of the pass's token NLLs to `gradient` (flat fp32) and that sum to `nll_sum`
  // (fp64 [1]). `step` int64 [1] on the device keys dropout.
  void forward_backward(const DevicePass& pass, const Tensor& step, const Tensor& gradient, Tensor& nll_sum);

  // Adds the sum of the pass's token NLLs to `nll_sum` (fp64 [1]), without dropout, in the buffers of
  // forward_backward; the logits exist in chunks only.
  void evaluate(const DevicePass& pass, Tensor& nll_sum);

  // Logits [T, vocab] in fp32 of a pass, without dropout; for tests.
  Tensor logits(const DevicePass& pass);

 private:
  struct Layer {
    Tensor input_norm, post_norm, q_norm, k_norm;
    WideLinear qkv, o, gate_up, down;
  };
  struct Activations {  // of one block, [capacity, ...]
    Tensor normed1, rstd1, qkv, qk, rstd_qk, attended, lse, middle, normed2, rstd2, gate_up;
  };
  struct Workspace {
    std::vector<Activations> blocks;       // the first is shared by the blocks that are recomputed
    std::vector<Tensor> inputs;            // residual stream before each block and after the last
    std::vector<Tensor> down_columns;      // [capacity, P], the LoRA columns of down's input, of each block
    Tensor activated;                      // [capacity, intermediate + P], of the block at work
    Tensor delta;                          // [capacity, hidden], output of o and of down
    Tensor residual_gradient;              // [capacity, hidden]
    std::array<Tensor, 2> wide_gradients;  // flat, capacity * widest group input; groups take turns
    Tensor output_gradient;                // flat, capacity * widest group output
    Tensor dropout_scratch;                // flat, capacity * widest group input; only with dropout
    Tensor final_normed, final_rstd, selected;
    Tensor logits, nll_rows;  // [chunk, vocab], [chunk]
    RopeTable rope;           // of the tokens of a pass; only with dynamic RoPE
  };

  Workspace make_workspace(std::int64_t tokens, std::int64_t recomputed, at::Device device) const;
  void forward(const DevicePass& pass, const DropoutContext& dropout);
  // previous: the residual stream in the middle of the block before, to which its output in `delta` is still
  // to be added; undefined at the first block and when a block is recomputed. Up to the input of SwiGLU,
  // which is where a recomputation ends.
  void block_forward(std::size_t layer, const Tensor& previous, const DevicePass& pass,
                     const DropoutContext& dropout);
  void down_forward(std::size_t layer, const DevicePass& pass, const DropoutContext& dropout);
  // Runs work beside the main stream, unless it needs the scratch buffer of dropout, of which there is one.
  template <typename Work>
  void aside(const DropoutContext& dropout, const Work& work) {
    if (dropout.p > 0) {
      work();
    } else {
      side_.run(work);
    }
  }
  void block_backward(std::size_t layer, const DevicePass& pass, const DropoutContext& dropout,
                      const Tensor& gradient, Tensor& dresidual);
  void attention_half_backward(std::size_t layer, const DevicePass& pass, const DropoutContext& dropout,
                               const Tensor& gradient, Tensor& dresidual);
  // The logits of the rows with a target and their NLLs, chunk by chunk. dselected [target rows, hidden],
  // where it is defined, gets the gradient of those rows.
  void head_loss(const DevicePass& pass, const Tensor& dselected, Tensor& nll_sum);
  void head_backward(const DevicePass& pass, Tensor& dresidual, Tensor& nll_sum);
  RopeTable rope_of(const DevicePass& pass) const;
  DropoutContext dropout_context(const DevicePass& pass, const Tensor& step) const;
  // The last block that shares its activations; those before it are recomputed.
  std::size_t last_sharing() const { return layers_.size() - work_.blocks.size(); }
  Activations& block(std::size_t layer) {
    return work_.blocks[layer <= last_sharing() ? 0 : layer - last_sharing()];
  }

  ModelConfig config_;
  LoraConfig lora_;
  DecoderOptions options_;
  FlatLayout layout_;
  Tensor embedding_, final_norm_, head_;
  // With a 4-bit base on the GPU an embedding of its own stays in pinned host memory, of which embedding_ is
  // the device's view: a pass reads a few rows.
  Tensor host_embedding_;
  std::vector<Layer> layers_;
  DecodedWeights weights_;
  RopeTable rope_;  // of all positions; undefined tensors with dynamic RoPE
  std::int64_t capacity_ = 0;
  Workspace work_;
  SideStream side_;
};

}  // namespace ranktune::model
