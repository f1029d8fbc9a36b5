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

// Largest number of tokens in [least, most] whose activations fit, or 0.
std::int64_t most_tokens(const model::Decoder& decoder, bool recompute, std::int64_t least, std::int64_t most,
                         std::int64_t bytes) {
  if (decoder.activation_bytes(most, recompute) <= bytes) return most;
  if (decoder.activation_bytes(least, recompute) > bytes) return 0;
  while (most - least > 1) {
    const std::int64_t middle = least + (most - least) / 2;
    (decoder.activation_bytes(middle, recompute) <= bytes ? least : most) = middle;
  }
  return least;
}

}  // namespace

std::int64_t largest_pass(const MemoryRequest& request, std::int64_t max_tokens_per_pass) {
  const std::int64_t whole = std::max<std::int64_t>(1, request.largest_window);
  return max_tokens_per_pass == 0 ? whole
                                  : std::min(whole, std::max(max_tokens_per_pass, request.longest_sample));
}

MemoryPlan plan_memory(const model::Decoder& decoder, const MemoryRequest& request) {
  const std::int64_t budget = request.free_bytes / 100 * 85;  // the rest: attention, fragments, others
  const std::int64_t whole = std::max<std::int64_t>(1, request.largest_window);
  const std::int64_t longest = std::max<std::int64_t>(1, request.longest_sample);
  MemoryPlan plan;
  const auto finish = [&](bool recompute, std::int64_t tokens, std::string reason) {
    plan.recompute = recompute;
    // A window that fits as a whole is never split, also where the run is made longer and meets a larger one.
    plan.max_tokens_per_pass = tokens == whole && request.max_tokens_per_pass == 0 ? 0 : tokens;
    plan.reserved_tokens = largest_pass(request, plan.max_tokens_per_pass);
    plan.activation_bytes = decoder.activation_bytes(plan.reserved_tokens, recompute);
    plan.reason = std::move(reason);
    return plan;
  };

  if (request.max_tokens_per_pass > 0) {
    const std::int64_t needed = largest_pass(request, request.max_tokens_per_pass);
    const bool fits = decoder.activation_bytes(needed, false) <= budget;
    const bool recompute =
        request.recompute == Recompute::always || (request.recompute == Recompute::automatic && !fits);
    return finish(recompute, request.max_tokens_per_pass,
                  recompute ? "blocks recomputed" : "all activations kept");
  }
  if (request.recompute == Recompute::never) {
    const std::int64_t tokens = most_tokens(decoder, false, std::min(longest, whole), whole, budget);
    if (tokens > 0) return finish(false, tokens, "all activations kept, as asked");
  } else {
    const std::int64_t floor = std::min(whole, std::max<std::int64_t>(longest, 1024));
    if (request.recompute == Recompute::automatic) {
      const std::int64_t tokens = most_tokens(decoder, false, floor, whole, budget);
      if (tokens > 0) {
        return finish(false, tokens,
                      tokens == whole ? "all activations kept" : "all activations kept, window split");
      }
    }
    const std::int64_t tokens = most_tokens(decoder, true, std::min(longest, whole), whole, budget);
    if (tokens > 0) {
      return finish(true, tokens,
                    request.recompute == Recompute::always ? "blocks recomputed, as asked"
                                                           : "blocks recomputed to fit memory");
    }
  }
  const bool recompute = request.recompute != Recompute::never;
  throw UserError("the longest sample (" + std::to_string(longest) + " tokens) needs " +
                  gibibytes(decoder.activation_bytes(std::min(longest, whole), recompute)) +
                  " of activations, but only " + gibibytes(budget) +
                  " are free; use a smaller --max_seq_length" +
                  (recompute ? "" : " or --use_gradient_checkpointing=true"));
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

std::int64_t peak_device_bytes(at::Device device) {
  if (!device.is_cuda()) return proc_bytes("/proc/self/status", "VmHWM");
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
}

}  // namespace ranktune::train
