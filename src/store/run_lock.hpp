// run.lock: one job at a time in an output directory.
#pragma once

#include <filesystem>
#include <string>

namespace ranktune::store {

// Made with O_EXCL; holds Slurm job id and restart count, host, boot id, pid, a random token. Taken over when the owner is
// the same Slurm job restarted, when it is on this host (same boot) and its pid is dead, or was left unchanged for 120 s.
// Throws UserError naming the owner otherwise.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& output_dir);
  ~RunLock();  // removes the file if it is still ours
  RunLock(const RunLock&) = delete;
  void refresh();         // touches the file; call every 15 s
  bool still_ours() const;  // re-reads the token; to be asked before every rename
  const std::string& token() const { return token_; }

 private:
  std::filesystem::path path_;
  std::string token_;
};

}  // namespace ranktune::store
