// Signals only set a flag; one thread takes them with sigtimedwait.
#pragma once

#include <atomic>
#include <memory>

namespace ranktune::cluster {

enum class StopReason : int { none = 0, usr = 1, term = 2, interrupt = 3, max_time = 4 };

// Exit code of a run that stopped for this reason: 85 (usr, max_time), 143 (term), 130 (interrupt), 0 (none).
int exit_code(StopReason reason);
const char* describe(StopReason reason);  // "SIGUSR2", "SIGTERM", "SIGINT", "--max_time"

// Thrown by poll() in a loading phase; carries the reason to the agreed end.
struct StopRequested {
  StopReason reason;
};

class SignalWatcher {
 public:
  // Starts the thread; the signals are blocked already (block_signals()). max_seconds <= 0: no time limit,
  // measured from `started`, a steady-clock time in seconds.
  SignalWatcher(double max_seconds, double started);
  ~SignalWatcher();
  StopReason reason() const { return static_cast<StopReason>(reason_.load(std::memory_order_relaxed)); }
  int count() const { return count_.load(std::memory_order_relaxed); }  // signals seen; 2 or more: at once
  void poll() const;           // throws StopRequested when a stop was asked for
  void ignore_from_now_on();   // after the agreement on the exit code

 private:
  struct Thread;
  std::atomic<int> reason_{0};
  std::atomic<int> count_{0};
  std::atomic<bool> ignore_{false};
  std::unique_ptr<Thread> thread_;
};

}  // namespace ranktune::cluster
