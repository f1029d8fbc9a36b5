#include "cluster/signals.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cluster/session.hpp"

namespace ranktune::cluster {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 500; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class Signals : public ::testing::Test {
 protected:
  void SetUp() override { block_signals(); }
  void TearDown() override {  // what nobody took must not reach the next test
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) sigaddset(&set, number);
    const timespec none{0, 0};
    while (sigtimedwait(&set, nullptr, &none) > 0) {
    }
  }
  // Sends and waits until it was seen.
  static void send(const SignalWatcher& watcher, int number) {
    const int before = watcher.count();
    kill(getpid(), number);
    ASSERT_TRUE(soon([&] { return watcher.count() == before + 1; }));
  }
};

TEST_F(Signals, NothingAtFirst) {
  SignalWatcher watcher(0, now());
  EXPECT_EQ(watcher.reason(), StopReason::none);
  EXPECT_EQ(watcher.count(), 0);
  EXPECT_NO_THROW(watcher.poll());
}

TEST_F(Signals, EachHasItsReason) {
  for (const auto& [number, reason] :
       {std::pair{SIGUSR1, StopReason::usr}, std::pair{SIGUSR2, StopReason::usr},
        std::pair{SIGTERM, StopReason::term}, std::pair{SIGINT, StopReason::interrupt}}) {
    SignalWatcher watcher(0, now());
    send(watcher, number);
    EXPECT_EQ(watcher.reason(), reason);
    try {
      watcher.poll();
      ADD_FAILURE() << "poll did not throw";
    } catch (const StopRequested& stop) {
      EXPECT_EQ(stop.reason, reason);
    }
  }
}

TEST_F(Signals, OneSentBeforeTheWatcherIsSeen) {
  kill(getpid(), SIGUSR2);
  SignalWatcher watcher(0, now());
  EXPECT_TRUE(soon([&] { return watcher.reason() == StopReason::usr; }));
}

TEST_F(Signals, TwiceIsCountedTwice) {
  SignalWatcher watcher(0, now());
  send(watcher, SIGUSR2);
  send(watcher, SIGUSR2);
  EXPECT_EQ(watcher.count(), 2);
  EXPECT_EQ(watcher.reason(), StopReason::usr);
}

TEST_F(Signals, TermReplacesUsrButNotTheOtherWayRound) {
  SignalWatcher watcher(0, now());
  send(watcher, SIGUSR2);
  send(watcher, SIGTERM);
  EXPECT_EQ(watcher.reason(), StopReason::term);
  send(watcher, SIGUSR2);
  send(watcher, SIGINT);
  EXPECT_EQ(watcher.reason(), StopReason::term);
}

TEST_F(Signals, TimeLimitStopsAndTermReplacesIt) {
  SignalWatcher watcher(10, now() - 9.8);
  EXPECT_EQ(watcher.reason(), StopReason::none);
  ASSERT_TRUE(soon([&] { return watcher.reason() == StopReason::max_time; }));
  EXPECT_EQ(watcher.count(), 0);
  send(watcher, SIGTERM);
  EXPECT_EQ(watcher.reason(), StopReason::term);
}

TEST_F(Signals, TimeLimitDoesNotReplaceASignal) {
  SignalWatcher watcher(10, now() - 9.5);
  send(watcher, SIGUSR2);
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  EXPECT_EQ(watcher.reason(), StopReason::usr);
}

TEST_F(Signals, IgnoredFromTheAgreementOn) {
  SignalWatcher watcher(0, now());
  watcher.ignore_from_now_on();
  kill(getpid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(watcher.reason(), StopReason::none);
  EXPECT_NO_THROW(watcher.poll());
}

TEST(StopReasons, ExitCodes) {
  EXPECT_EQ(exit_code(StopReason::none), 0);
  EXPECT_EQ(exit_code(StopReason::usr), 85);
  EXPECT_EQ(exit_code(StopReason::max_time), 85);
  EXPECT_EQ(exit_code(StopReason::term), 143);
  EXPECT_EQ(exit_code(StopReason::interrupt), 130);
}

TEST(StopReasons, CancellingIsStronger) {
  EXPECT_EQ(stronger(StopReason::max_time, StopReason::term), StopReason::term);
  EXPECT_EQ(stronger(StopReason::term, StopReason::max_time), StopReason::term);
  EXPECT_EQ(stronger(StopReason::interrupt, StopReason::term), StopReason::interrupt);
  EXPECT_EQ(stronger(StopReason::none, StopReason::usr), StopReason::usr);
}

}  // namespace
}  // namespace ranktune::cluster
