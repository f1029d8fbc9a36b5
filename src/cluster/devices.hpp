// Which GPU is whose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/session.hpp"

namespace ranktune::cluster {

struct DeviceChoice {
  bool cuda = false;
  int index = -1;    // CUDA device index of this rank
  std::string name;  // "NVIDIA H200", or the CPU's model name
  std::string uuid;
  std::int64_t memory_bytes = 0;
  int multiprocessors = 0;
  std::string driver;  // "580.159"
};

// `wanted`: "auto", "cuda", "cpu". Collective. auto is the CPU only if no rank sees an NVIDIA device. On
// CUDA: device local_rank where all of a node's GPUs are visible, device 0 where one is visible per task;
// UUIDs are gathered and two ranks on one GPU refused (UserError naming both ranks and the host), unless
// `allow_shared_gpu` (then each rank gets its own NCCL_HOSTID, set before NCCL is loaded, and shared GPUs are
// dealt round). Never `% device_count` otherwise. Too few GPUs: UserError with the numbers. Driver older than
// CUDA 13's 580: UserError with found and needed. Sets the device current.
DeviceChoice choose_device(const Session& session, const std::string& wanted, bool allow_shared_gpu);

// Sets what must be in the environment before CUDA or NCCL start: CUBLAS_WORKSPACE_CONFIG=:4096:8 unless set,
// and NCCL_HOSTID per rank when `allow_shared_gpu`. Call before any CUDA call.
void prepare_environment(const Session& session, bool allow_shared_gpu);

}  // namespace ranktune::cluster
