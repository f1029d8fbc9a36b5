// How the accumulation window is run: in how many passes, and how many blocks are recomputed in the backward
// pass.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/session.hpp"
#include "model/decoder.hpp"

namespace ranktune::train {

enum class Recompute { automatic, always, never };

struct MemoryRequest {
  Recompute recompute = Recompute::automatic;
  std::int64_t max_tokens_per_pass = 0;  // 0: automatic
  std::int64_t largest_window = 0;       // tokens of the largest accumulation window of any rank
  std::int64_t longest_sample = 0;
  std::int64_t free_bytes = 0;  // on the device that has least
};

struct MemoryPlan {
  std::int64_t recomputed = 0;           // blocks whose forward runs again
  std::int64_t max_tokens_per_pass = 0;  // windows are split above this, at sample boundaries; 0: never
  std::int64_t reserved_tokens = 0;      // largest pass there can be
  std::int64_t activation_bytes = 0;
  std::string reason;  // one phrase for the banner
};

// Tokens of the largest pass when windows are split above `max_tokens_per_pass` (0: never); at least 1.
std::int64_t largest_pass(const MemoryRequest& request, std::int64_t max_tokens_per_pass);

// The cheapest plan that fits, by relative_cost(): everything kept in one pass; else the window split, or as
// many blocks recomputed as it takes, or both. Throws UserError with the figures when even the longest sample
// alone with recomputation does not fit.
MemoryPlan plan_memory(const model::Decoder& decoder, const MemoryRequest& request);

// Whether passes of `tokens` tokens, of samples of at most `longest` each, fit where `recomputed` blocks are
// recomputed.
bool pass_fits(const model::Decoder& decoder, std::int64_t tokens, std::int64_t longest,
               std::int64_t recomputed, std::int64_t free_bytes);

// Time of a pass per token, 1 for a very long one with everything kept. Small passes leave the GPU partly
// idle: measured on one H200 with an 8B model, 712 tokens take 15 % more each than 8,188. A recomputed block
// runs its GEMMs up to SwiGLU again, 26 % of its forward and backward. A 4-bit base is decoded once forward,
// once backward and once more where a block is recomputed, each time for as long as 88 tokens take: 2.5 bytes
// a weight at 4.2 TB/s, arithmetic that counts no overlap.
double relative_cost(std::int64_t tokens, std::int64_t recomputed, const model::ModelConfig& config);

// Bytes free for activations where the decoder lives: on the GPU what the driver reports and the allocator
// holds unused, on the CPU the available memory divided among the node's ranks. With a limit (bytes that this
// program may hold on its device, 0: none) no more than what is left of it.
std::int64_t free_device_bytes(at::Device device, int ranks_on_node, std::int64_t limit = 0);

// Collective: the least that is free on any rank.
std::int64_t least_free_bytes(const cluster::Session& session, at::Device device, std::int64_t limit);

// Peak bytes that this program has held on its device so far (CPU: resident memory).
std::int64_t peak_device_bytes(at::Device device);

}  // namespace ranktune::train
