// Signals only set a flag; one thread takes them with sigtimedwait.
#pragma once

#include <atomic>
#include <memory>

namespace ranktune::cluster {

class Session;

enum class StopReason : int { none = 0, usr = 1, term = 2, interrupt = 3, max_time = 4 };

// Exit code of a run that stopped for this reason: 85 (usr, max_time), 143 (term), 130 (interrupt), 0 (none).
int exit_code(StopReason reason);
const char* describe(StopReason reason);  // "SIGUSR2", "SIGTERM", "SIGINT", "--max_time"

// The reason that decides the exit code when ranks have different ones: interrupt over term over usr over
// max_time.
StopReason stronger(StopReason a, StopReason b);
// Collective: the ranks may have seen different signals, and the strongest holds for all.
StopReason agreed_stop(const Session& session, StopReason own);

// Thrown by poll() in a loading phase; carries the reason to the agreed end.
struct StopRequested {
  StopReason reason;
};

// Takes SIGUSR1, SIGUSR2, SIGTERM and SIGINT of this process, and the time limit of the run. The first reason
// stays, but TERM and INT replace the others: whoever cancels a job must not get it requeued.
class SignalWatcher {
 public:
  // Starts the thread; the signals are blocked already (block_signals()). max_seconds <= 0: no time limit,
  // measured from `started`, a steady-clock time in seconds.
  SignalWatcher(double max_seconds, double started);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;
  StopReason reason() const { return static_cast<StopReason>(reason_.load(std::memory_order_relaxed)); }
  int count() const { return count_.load(std::memory_order_relaxed); }  // signals seen; 2 or more: at once
  void poll() const;          // throws StopRequested when a stop was asked for
  void ignore_from_now_on();  // after the agreement on the exit code

 private:
  struct Thread;
  void watch();
  void note(StopReason reason);
  std::atomic<int> reason_{0};
  std::atomic<int> count_{0};
  std::atomic<bool> ignore_{false};
  std::unique_ptr<Thread> thread_;
};

}  // namespace ranktune::cluster
