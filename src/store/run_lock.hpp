// run.lock: one job at a time in an output directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ranktune::store {

// Who holds or wants a lock. Two owners are compared by it.
struct LockOwner {
  std::string job_id;              // Slurm's, empty outside of Slurm
  std::int64_t restart_count = 0;  // how often Slurm has requeued the job
  std::string host;
  std::string boot_id;        // of the running kernel
  std::string pid_namespace;  // process ids mean something within one only
  std::int64_t pid = 0;
  std::int64_t process_started = 0;  // clock ticks after boot; tells a reused process id

  // This process; Slurm's part from SLURM_JOB_ID and SLURM_RESTART_COUNT.
  static LockOwner self();
};

// Made at once and whole (hard link, else O_EXCL); holds the owner and a random token. Taken over when the
// owner is the same Slurm job restarted, when it is on this host (same boot) and its process is dead, or was
// left unchanged for 120 s by the file system's clock. Makes the directory when it is missing. Throws
// UserError naming the owner otherwise, or when the directory cannot be written to.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& output_dir, const LockOwner& owner = LockOwner::self());
  ~RunLock();  // removes the file if it is still ours
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  void refresh();           // touches the file; call every 15 s; throws Failure when the lock was lost
  bool still_ours() const;  // re-reads the token; to be asked before every rename
  const std::string& token() const { return token_; }

 private:
  std::filesystem::path path_;
  std::string token_;
};

}  // namespace ranktune::store
