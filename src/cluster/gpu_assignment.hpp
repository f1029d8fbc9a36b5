// Which of the GPUs that a rank sees it takes; no CUDA here.
#pragma once

#include <string>
#include <vector>

namespace ranktune::cluster::detail {

// What one rank sees.
struct RankGpus {
  int rank = 0;
  int node = 0;
  int local_rank = 0;
  std::string host;
  std::vector<std::string> uuids;  // by CUDA device index
};

// The device index of each rank (`ranks` holds the whole world, in rank order). Where all ranks of a node see
// the same GPUs, local rank r takes device r; where they see different ones (one visible per task), each
// takes its device 0. With `allow_shared_gpu` the GPUs of a node are dealt round. Throws UserError, one
// sentence per problem: too few GPUs on a node, two ranks on one GPU, a rank without any.
std::vector<int> assign_gpus(const std::vector<RankGpus>& ranks, bool allow_shared_gpu);

// The kernel driver's version in the text of /proc/driver/nvidia/version, "580.95.05"; empty if there is
// none.
std::string driver_version(const std::string& text);

}  // namespace ranktune::cluster::detail
