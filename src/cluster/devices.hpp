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
  std::string uuid;  // "GPU-01234567-89ab-cdef-0123-456789abcdef"; empty on the CPU
  std::int64_t memory_bytes = 0;
  int multiprocessors = 0;
  std::string driver;  // "580.159"; empty on the CPU
};

// `wanted`: "auto", "cuda", "cpu". Collective. auto is the CPU only if no rank sees an NVIDIA device; all
// ranks or none. A rank sees one when CUDA counts one or, with a driver that cannot be used, when the machine
// has one that CUDA_VISIBLE_DEVICES does not hide and the job may open. On CUDA: device local_rank where all
// of a node's GPUs are visible, device 0 where one is visible per task; UUIDs are gathered and two ranks on
// one GPU refused (UserError naming both ranks and the host), unless `allow_shared_gpu` (then each rank gets
// its own NCCL_HOSTID, set before NCCL is loaded, and shared GPUs are dealt round). Never
// `% device_count` otherwise. Too few GPUs: UserError with the numbers. A driver older than CUDA 13's 580, or
// a GPU older than compute capability 8.0: UserError with found and needed. Sets the device current.
DeviceChoice choose_device(const Session& session, const std::string& wanted, bool allow_shared_gpu);

// Sets what must be in the environment before CUDA or NCCL start: CUBLAS_WORKSPACE_CONFIG=:4096:8 unless set,
// and NCCL_HOSTID per rank, unless set, when `allow_shared_gpu`. Call before any CUDA call.
void prepare_environment(const Session& session, bool allow_shared_gpu);

}  // namespace ranktune::cluster
