#include "cluster/watchdog.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "mpi_test.hpp"

namespace ranktune::cluster {
namespace {

using ranktune::testing::session;
using std::chrono::milliseconds;

// Long against what a loaded machine may do to a sleep.
constexpr double kDeadline = 1.0;
constexpr auto kLonger = milliseconds(1300);

void be_slow(Watchdog& watchdog) {
  for (int part = 0; part < 25; ++part) {
    std::this_thread::sleep_for(milliseconds(100));
    watchdog.progress(part);
  }
}

// These end the job where they fail.
TEST(Watchdog, LetsProgressPass) {
  Watchdog watchdog(session());
  watchdog.phase("busy", kDeadline);
  be_slow(watchdog);
}

TEST(Watchdog, LetsAnUnwatchedPhaseAndTheTimeAfterStopPass) {
  Watchdog watchdog(session());
  watchdog.phase("unwatched", 0);
  std::this_thread::sleep_for(kLonger);
  watchdog.phase("watched", kDeadline);
  watchdog.stop();
  std::this_thread::sleep_for(kLonger);
  session().barrier();
}

TEST(Watchdog, ANewPhaseBeginsWithANewMark) {
  Watchdog watchdog(session());
  watchdog.phase("unwatched", 0);
  std::this_thread::sleep_for(kLonger);
  watchdog.phase("watched", kDeadline);
  std::this_thread::sleep_for(milliseconds(50));
  watchdog.phase(std::string(200, 'x'), 0);
}

// The others have long passed their deadline when the slow one arrives.
TEST(Watchdog, WaitsForASlowRankThatMakesProgress) {
  Watchdog watchdog(session());
  watchdog.phase("one is slow", kDeadline);
  for (int round = 0; round < 2; ++round) {
    if (session().rank() == session().world_size() - 1) be_slow(watchdog);
    session().together("waiting", [] {});
  }
  watchdog.stop();
}

TEST(Watchdog, KeepsCountBeyondItsRing) {
  Watchdog watchdog(session());
  watchdog.phase("many", 5);
  for (int i = 0; i < 600; ++i) {
    watchdog.collective_started("all_reduce of a very long name", 1U << 20U);
    watchdog.collective_started("inner", 1);
    watchdog.collective_finished();
    watchdog.collective_finished();
  }
}

}  // namespace
}  // namespace ranktune::cluster
