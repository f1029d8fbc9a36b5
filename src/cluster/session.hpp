// What the job is: MPI, who is where, agreements between ranks. The only room (with app) that reads the
// environment.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace ranktune::cluster {

// Throws UserError when this is one task of a Slurm step of several tasks that was started without MPI
// support (SLURM_NTASKS > 1 inside a step, and none of PMIX_RANK, PMI_RANK, OMPI_COMM_WORLD_SIZE set),
// AgreedFailure{2} on the tasks other than 0, so that only task 0's message is printed.
void refuse_launch_without_mpi();

// Blocks the signals the program handles in the calling thread (and all made after it). Call first in main.
void block_signals();
// Gives them their usual effect again, for a command that only has to end.
void release_signals();

// Another rank failed and has said so; this rank ends quietly with the same exit code.
struct AgreedFailure {
  int exit_code;
};

// What Session::together throws: the same type and text on every rank, so that rank 0 alone prints it. A
// UserError or Failure that is none of these is known to this rank only, which prints it itself.
class AgreedUserError : public UserError {
 public:
  using UserError::UserError;
};
class AgreedError : public Failure {
 public:
  using Failure::Failure;
};

// Hears of every collective of the control plane; see Watchdog.
class CollectiveObserver {
 public:
  virtual void collective_started(const char* kind, std::size_t bytes) = 0;
  virtual void collective_finished() = 0;

 protected:
  ~CollectiveObserver() = default;
};

// RAII of MPI_Init_thread / MPI_Finalize; finalizes only when nothing is unwinding. Values about the job.
class Session {
 public:
  Session();  // throws Failure
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  int local_rank() const { return local_rank_; }  // on this node
  int local_size() const { return local_size_; }
  int node() const { return node_; }  // nodes counted by their lowest rank
  int nodes() const { return nodes_; }
  bool is_root() const { return rank_ == 0; }
  const std::vector<std::string>& hosts() const { return hosts_; }  // host name of each rank
  int thread_level() const { return thread_level_; }                // at least MPI_THREAD_SERIALIZED
  MPI_Comm world() const { return world_; }                         // a duplicate; errors are returned
  MPI_Comm node_communicator() const { return node_comm_; }
  // CPUs this rank may use: its affinity mask, divided among the node's ranks where the mask is shared; at
  // least 1.
  int allowed_cpus() const { return allowed_cpus_; }

  // ---- control plane, collective over all ranks, host memory; throws Failure ----
  void barrier() const;
  void broadcast(std::string& bytes, int root = 0) const;  // any size, also above 2 GiB
  void broadcast_bytes(void* data, std::size_t bytes, int root = 0) const;
  std::vector<std::string> gather_all(std::string_view mine) const;  // one string of each rank, any size
  std::int64_t sum(std::int64_t mine) const;
  std::int64_t max(std::int64_t mine) const;

  // Runs `work` on this rank; if it throws on any rank, all ranks leave with the same exception, which rank
  // 0's main prints once:
  // - UserError anywhere -> AgreedUserError with the sentences of the lowest rank that threw one; those of
  // other ranks
  //   follow, marked "rank R on HOST: ", only where they differ.
  // - any other exception -> AgreedError, "rank R on HOST: PHASE: text" of the lowest rank that failed.
  // - StopRequested (signals.hpp), when nothing failed -> StopRequested with the strongest reason.
  // Every fallible step of a phase goes through this. `work` may hold collectives that all ranks reach or
  // none; a rank that fails before one that the others are already in leaves them there, so it says its
  // message itself after `kSayAfterSeconds` and leaves the end to the watchdog.
  void together(std::string_view phase, const std::function<void()>& work) const;
  static constexpr double kSayAfterSeconds = 20;

  // At most one, which outlives its observing; nullptr ends it.
  void observe(CollectiveObserver* observer) const { observer_ = observer; }

 private:
  void find_neighbours();
  void count_cpus();
  bool anyone(bool mine, const std::function<void()>& when_late) const;

  int rank_ = 0, world_size_ = 1, local_rank_ = 0, local_size_ = 1, node_ = 0, nodes_ = 1, thread_level_ = 0;
  int allowed_cpus_ = 1;
  std::vector<std::string> hosts_;
  MPI_Comm world_ = MPI_COMM_NULL, node_comm_ = MPI_COMM_NULL;
  MPI_Comm agreement_ = MPI_COMM_NULL;  // of together() alone: a collective of `work` can never match its own
  mutable CollectiveObserver* observer_ = nullptr;  // hears, changes nothing here
  int uncaught_ = 0;
};

// "Open MPI 4.1.4"; any time.
std::string mpi_library();

// Facts of the Slurm job for provenance and the lock; empty strings where there is none.
struct SlurmFacts {
  std::string job_id, step_id, restart_count, node_list, array_job_id, array_task_id;
};
SlurmFacts slurm_facts();

}  // namespace ranktune::cluster
