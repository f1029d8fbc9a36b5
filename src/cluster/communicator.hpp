// The data plane: collectives over the training device's memory. Two backends, NCCL on the GPU and MPI on
// host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cluster/session.hpp"

namespace ranktune::cluster {

// Every call is collective and made by all ranks in the same order. In a world of one rank all are no-ops,
// except that synchronize waits for the stream. One that was not closed is leaked on purpose: ending it needs
// all ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // In-place sum over all ranks of `count` floats at `data` (device memory for NCCL, host memory for MPI).
  // All ranks get the same bits, and the same ones again for the same number of ranks. NCCL: enqueued on
  // `stream` (a cudaStream_t), returns at once. MPI: blocking, `stream` ignored.
  virtual void all_reduce_sum(float* data, std::size_t count, void* stream) = 0;
  // Bytes from `root` to all, in place; same ordering rules.
  virtual void broadcast(void* data, std::size_t bytes, int root, void* stream) = 0;
  // Waits until everything enqueued is done, polling for errors of the backend. Throws Failure.
  virtual void synchronize(void* stream) = 0;
  virtual std::string name() const = 0;  // "NCCL 2.28.9" or "MPI (Open MPI 4.1.4)"
  virtual void close() = 0;              // before MPI_Finalize; collective; throws Failure

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

 protected:
  Communicator(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  int rank_;
  int world_size_;
};

// Elements of one MPI_Allreduce. Part of what the bits of a sum depend on, so it is fixed.
inline constexpr std::size_t kReduceElements = std::size_t{1} << 24;

// Collective, on a duplicate of the session's communicator. Throws Failure.
std::unique_ptr<Communicator> make_mpi_communicator(const Session& session,
                                                    std::size_t reduce_elements = kReduceElements);

// ncclGetUniqueId on 0 -> MPI_Bcast -> barrier -> ncclCommInitRankConfig, non-blocking, polled for at most
// `timeout_seconds`. The CUDA device is already current. Throws Failure. A world of one rank needs no NCCL
// call. Collective. The NCCL that is loaded must have the major.minor version of the header.
std::unique_ptr<Communicator> make_nccl_communicator(const Session& session, double timeout_seconds = 300);

}  // namespace ranktune::cluster
