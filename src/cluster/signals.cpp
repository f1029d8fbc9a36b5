#include "cluster/signals.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "cluster/session.hpp"

namespace ranktune::cluster {
namespace {

constexpr std::array<int, 4> kSignals{SIGUSR1, SIGUSR2, SIGTERM, SIGINT};

// Signals that came to a thread which does not block them: libraries start such threads (seen after
// MPI_Init), and without a handler a signal there would end the process. The one state of the program that is
// global, since a handler has no other.
std::array<std::atomic<int>, kSignals.size()> caught_elsewhere{};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void catch_signal(int number) {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] == number) ++caught_elsewhere[i];
  }
}

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kSignals) sigaddset(&set, number);
  return set;
}

StopReason reason_of(int number) {
  switch (number) {
    case SIGTERM:
      return StopReason::term;
    case SIGINT:
      return StopReason::interrupt;
    default:
      return StopReason::usr;
  }
}

bool cancels(StopReason reason) {
  return reason == StopReason::term || reason == StopReason::interrupt;
}

}  // namespace

void block_signals() {
  // The handlers first: threads that libraries started before main() block nothing.
  struct sigaction action {};
  action.sa_handler = catch_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : kSignals) {
    RT_CHECK(sigaction(number, &action, nullptr) == 0, "signals can be handled");
  }
  const auto set = handled_signals();
  RT_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0, "signals can be blocked");
}

void release_signals() {
  for (const int number : kSignals) RT_CHECK(::signal(number, SIG_DFL) != SIG_ERR, "signals can be reset");
  const auto set = handled_signals();
  RT_CHECK(pthread_sigmask(SIG_UNBLOCK, &set, nullptr) == 0, "signals can be unblocked");
}

int exit_code(StopReason reason) {
  switch (reason) {
    case StopReason::usr:
    case StopReason::max_time:
      return 85;
    case StopReason::term:
      return 143;
    case StopReason::interrupt:
      return 130;
    case StopReason::none:
      break;
  }
  return 0;
}

const char* describe(StopReason reason) {
  switch (reason) {
    case StopReason::usr:
      return "SIGUSR2";
    case StopReason::term:
      return "SIGTERM";
    case StopReason::interrupt:
      return "SIGINT";
    case StopReason::max_time:
      return "--max_time";
    case StopReason::none:
      break;
  }
  return "nothing";
}

StopReason stronger(StopReason a, StopReason b) {
  constexpr std::array order{StopReason::none, StopReason::max_time, StopReason::usr, StopReason::term,
                             StopReason::interrupt};
  return std::find(order.begin(), order.end(), a) < std::find(order.begin(), order.end(), b) ? b : a;
}

struct SignalWatcher::Thread {
  double deadline = 0;  // steady-clock seconds, 0 for none
  std::atomic<bool> stop{false};
  std::thread thread;
};

SignalWatcher::SignalWatcher(double max_seconds, double started) : thread_(std::make_unique<Thread>()) {
  if (max_seconds > 0) thread_->deadline = started + max_seconds;
  thread_->thread = std::thread([this] { watch(); });
}

SignalWatcher::~SignalWatcher() {
  thread_->stop = true;
  thread_->thread.join();
}

void SignalWatcher::watch() {
  // Short waits, so that the destructor and the time limit are heard without a signal of their own.
  constexpr timespec kWait{0, 50'000'000};
  const auto set = handled_signals();
  while (!thread_->stop) {
    const int number = sigtimedwait(&set, nullptr, &kWait);
    if (ignore_) continue;
    const auto take = [this](int signal_number) {
      note(reason_of(signal_number));
      ++count_;
    };
    if (number > 0) take(number);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      for (int left = caught_elsewhere[i].exchange(0); left > 0; --left) take(kSignals[i]);
    }
    if (thread_->deadline > 0 && steady_seconds() >= thread_->deadline) note(StopReason::max_time);
  }
}

void SignalWatcher::note(StopReason reason) {
  const auto known = this->reason();
  if (known == StopReason::none || (cancels(reason) && !cancels(known))) reason_ = static_cast<int>(reason);
}

void SignalWatcher::poll() const {
  if (!ignore_ && reason() != StopReason::none) throw StopRequested{reason()};
}

void SignalWatcher::ignore_from_now_on() {
  ignore_ = true;
}

}  // namespace ranktune::cluster
