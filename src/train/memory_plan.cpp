#include "train/memory_plan.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/error.hpp"

namespace ranktune::train {
namespace {

// A line "Name:   1234 kB" of a /proc file, in bytes; -1 when it is not there.
std::int64_t proc_bytes(const char* file, const std::string& name) {
  std::ifstream stream(file);
  std::string word;
  while (stream >> word) {
    if (word == name + ":") {
      std::int64_t kilobytes = 0;
      stream >> kilobytes;
      return kilobytes * 1024;
    }
    stream.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return -1;
}

std::string gibibytes(std::int64_t bytes) {
  const auto tenths = static_cast<std::int64_t>(static_cast<double>(bytes) / (1 << 30) * 10 + 0.5);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GiB";
}

// What ATen's flash attention takes for itself while it runs: our own kernels, for samples of up to 512
// tokens, take nothing. Its deterministic backward adds up dQ in fp32, once for each group of blocks that
// together fill the GPU, and dK and dV for every query head.
std::int64_t attention_bytes(const model::Decoder& decoder, std::int64_t tokens, std::int64_t longest) {
  if (!decoder.options().device.is_cuda() || longest <= 512) return 0;
  const model::ModelConfig& config = decoder.config();
  constexpr std::int64_t kMultiprocessors = 148;  // of the largest GPU so far
  const std::int64_t sums = (kMultiprocessors + config.heads - 1) / config.heads;
  return tokens * config.q_width() * (4 * sums + 2 * 6);
}

// What is left for activations: the rest is for cuBLAS, graphs, fragments, and on the CPU for other programs.
std::int64_t budget_of(const model::Decoder& decoder, std::int64_t free_bytes) {
  if (!decoder.options().device.is_cuda()) return free_bytes / 100 * 85;
  return free_bytes - std::max<std::int64_t>(free_bytes / 20, 192 << 20);
}

// Least number of recomputed blocks with which passes of `tokens` fit; -1: none.
std::int64_t least_recomputed(const model::Decoder& decoder, const MemoryRequest& request,
                              std::int64_t tokens) {
  const std::int64_t layers = decoder.config().layers;
  const std::int64_t room = budget_of(decoder, request.free_bytes) -
                            attention_bytes(decoder, tokens, std::min(tokens, request.longest_sample));
  const std::int64_t most = decoder.activation_bytes(tokens, 0);
  const std::int64_t least = decoder.activation_bytes(tokens, layers);
  if (request.recompute == Recompute::always) return least <= room ? layers : -1;
  if (most <= room) return 0;
  if (request.recompute == Recompute::never || least > room) return -1;
  // Bytes fall by the same amount for each block but the first.
  const std::int64_t block = (most - least) / (layers - 1);
  return std::min(layers, (most - room + block - 1) / block + 1);
}

std::string reason_of(const MemoryRequest& request, const MemoryPlan& plan, std::int64_t layers) {
  const std::string asked = request.recompute == Recompute::automatic ? "" : ", as asked";
  const std::string split = plan.max_tokens_per_pass > 0 ? ", window split" : "";
  if (plan.recomputed == 0) return "all activations kept" + asked + split;
  return std::to_string(plan.recomputed) + " of " + std::to_string(layers) + " blocks recomputed" +
         (asked.empty() ? " to fit memory" : asked) + split;
}

}  // namespace

std::int64_t largest_pass(const MemoryRequest& request, std::int64_t max_tokens_per_pass) {
  const std::int64_t whole = std::max<std::int64_t>(1, request.largest_window);
  return max_tokens_per_pass == 0 ? whole
                                  : std::min(whole, std::max(max_tokens_per_pass, request.longest_sample));
}

bool pass_fits(const model::Decoder& decoder, std::int64_t tokens, std::int64_t longest,
               std::int64_t recomputed, std::int64_t free_bytes) {
  return decoder.activation_bytes(tokens, recomputed) +
             attention_bytes(decoder, tokens, std::min(tokens, longest)) <=
         budget_of(decoder, free_bytes);
}

double relative_cost(std::int64_t tokens, std::int64_t recomputed, const model::ModelConfig& config) {
  const double share = static_cast<double>(recomputed) / static_cast<double>(config.layers);
  const double decoding = config.four_bit ? 88 * (2 + share) / static_cast<double>(tokens) : 0;
  return (1 + 117.0 / static_cast<double>(tokens)) * (1 + 0.26 * share) + decoding;
}

MemoryPlan plan_memory(const model::Decoder& decoder, const MemoryRequest& request) {
  const std::int64_t layers = decoder.config().layers;
  const std::int64_t whole = std::max<std::int64_t>(1, request.largest_window);
  const std::int64_t longest = std::clamp<std::int64_t>(request.longest_sample, 1, whole);
  const std::int64_t asked = largest_pass(request, request.max_tokens_per_pass);
  MemoryPlan best;
  double least_cost = std::numeric_limits<double>::infinity();
  // A window that fits as a whole is never split, also where the run is made longer and meets a larger one.
  // Smaller passes cost more: none that follow can win once they would not with everything kept.
  std::int64_t tokens = asked;
  for (std::int64_t parts = 1; relative_cost(tokens, 0, decoder.config()) < least_cost; ++parts) {
    const std::int64_t recomputed = least_recomputed(decoder, request, tokens);
    const double cost = recomputed < 0 ? least_cost : relative_cost(tokens, recomputed, decoder.config());
    if (cost < least_cost) {
      least_cost = cost;
      best.recomputed = recomputed;
      best.max_tokens_per_pass = parts > 1 ? tokens : request.max_tokens_per_pass;
      best.reserved_tokens = tokens;
    }
    if (tokens == longest || request.max_tokens_per_pass > 0) break;
    tokens = std::max(longest, (whole + parts) / (parts + 1));
  }
  if (best.reserved_tokens > 0) {
    best.activation_bytes = decoder.activation_bytes(best.reserved_tokens, best.recomputed);
    best.reason = reason_of(request, best, layers);
    return best;
  }
  const bool keep = request.recompute == Recompute::never;
  // `tokens` is the smallest pass that may be.
  const bool one_sample = tokens == longest;
  throw UserError((one_sample ? "the longest sample, " : "a pass of ") + std::to_string(tokens) +
                  " tokens, needs " +
                  gibibytes(decoder.activation_bytes(tokens, keep ? 0 : layers) +
                            attention_bytes(decoder, tokens, longest)) +
                  " of activations, but only " + gibibytes(budget_of(decoder, request.free_bytes)) +
                  " are free; use a smaller " + (one_sample ? "--max_seq_length" : "--max_tokens_per_pass") +
                  (keep ? " or --use_gradient_checkpointing=true" : ""));
}

std::int64_t free_device_bytes(at::Device device, int ranks_on_node, std::int64_t limit) {
  if (!device.is_cuda()) {
    const std::int64_t available = proc_bytes("/proc/meminfo", "MemAvailable");
    RT_CHECK(available > 0, "/proc/meminfo has no MemAvailable");
    const std::int64_t share = available / std::max(1, ranks_on_node);
    return limit > 0 ? std::min(share, limit - proc_bytes("/proc/self/status", "VmRSS")) : share;
  }
  std::size_t free = 0;
  std::size_t total = 0;
  RT_CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess, "cudaMemGetInfo failed");
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  const std::int64_t held = stats.allocated_bytes[0].current;
  const std::int64_t unused = static_cast<std::int64_t>(free) + stats.reserved_bytes[0].current - held;
  return limit > 0 ? std::min(unused, limit - held) : unused;
}

std::int64_t least_free_bytes(const cluster::Session& session, at::Device device, std::int64_t limit) {
  return -session.max(-free_device_bytes(device, session.local_size(), limit));
}

std::int64_t peak_device_bytes(at::Device device) {
  if (!device.is_cuda()) return proc_bytes("/proc/self/status", "VmHWM");
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
}

}  // namespace ranktune::train
