#include "cluster/gpu_assignment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"

namespace ranktune::cluster::detail {
namespace {

using Sentences = std::vector<std::string>;

constexpr const char* kSharedHint =
    "(--allow_shared_gpu lets ranks share one, for tests of correctness only)";

std::string listed(const std::vector<const RankGpus*>& ranks) {
  constexpr std::size_t kReadable = 16;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kReadable; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]->rank);
  }
  return ranks.size() > kReadable ? text + ", ..." : text;
}

// Ranks of one node that all see the same GPUs.
std::vector<int> deal(const std::vector<const RankGpus*>& node, bool allow_shared_gpu, Sentences& problems) {
  const auto gpus = static_cast<int>(node.front()->uuids.size());
  const auto ranks = static_cast<int>(node.size());
  if (gpus < ranks && !allow_shared_gpu) {
    problems.push_back(
        fmt::format("{} has {} ranks ({}) but only {} visible GPU{}; start at most {} there {}.",
                    node.front()->host, ranks, listed(node), gpus, gpus == 1 ? "" : "s", gpus, kSharedHint));
    return std::vector<int>(node.size(), -1);
  }
  std::vector<int> indices;
  for (const auto* one : node) indices.push_back(allow_shared_gpu ? one->local_rank % gpus : one->local_rank);
  return indices;
}

// Ranks of one node that see different GPUs: each has its own set, unless two sets begin with the same one.
void refuse_same_first(const std::vector<const RankGpus*>& node, Sentences& problems) {
  std::map<std::string, int> owner;
  for (const auto* one : node) {
    const auto [at, is_new] = owner.emplace(one->uuids.front(), one->rank);
    if (is_new) continue;
    problems.push_back(fmt::format("Ranks {} and {} on {} have the same GPU {}; give each rank its own {}.",
                                   at->second, one->rank, one->host, one->uuids.front(), kSharedHint));
  }
}

}  // namespace

std::vector<int> assign_gpus(const std::vector<RankGpus>& ranks, bool allow_shared_gpu) {
  Sentences problems;
  std::map<int, std::vector<const RankGpus*>> nodes;
  for (const auto& one : ranks) {
    nodes[one.node].push_back(&one);
    if (one.uuids.empty()) {
      problems.push_back(fmt::format("Rank {} on {} sees no usable GPU.", one.rank, one.host));
    }
  }
  if (!problems.empty()) throw UserError(std::move(problems));

  std::vector<int> indices(ranks.size(), 0);
  for (const auto& [number, node] : nodes) {
    const bool same = std::all_of(node.begin(), node.end(), [&, first = node.front()](auto* one) {
      return one->uuids == first->uuids;
    });
    if (same) {
      const auto dealt = deal(node, allow_shared_gpu, problems);
      for (std::size_t i = 0; i < node.size(); ++i)
        indices[static_cast<std::size_t>(node[i]->rank)] = dealt[i];
    } else if (!allow_shared_gpu) {
      refuse_same_first(node, problems);
    }
  }
  if (!problems.empty()) throw UserError(std::move(problems));
  return indices;
}

std::string driver_version(const std::string& text) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue ..."; the first word of digits and dots.
  std::size_t at = 0;
  while (at < text.size()) {
    const auto begin = text.find_first_not_of(" \t\n", at);
    if (begin == std::string::npos) break;
    const auto end = std::min(text.find_first_of(" \t\n", begin), text.size());
    const auto word = text.substr(begin, end - begin);
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos) {
      return word;
    }
    at = end;
  }
  return "";
}

}  // namespace ranktune::cluster::detail
