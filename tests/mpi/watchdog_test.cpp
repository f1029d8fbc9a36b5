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

// These end the job where they fail.
TEST(Watchdog, LetsProgressPass) {
  Watchdog watchdog(session());
  watchdog.phase("busy", 0.3);
  for (int step = 0; step < 8; ++step) {
    std::this_thread::sleep_for(milliseconds(100));
    watchdog.progress(step);
  }
}

TEST(Watchdog, LetsAnUnwatchedPhaseAndTheTimeAfterStopPass) {
  Watchdog watchdog(session());
  watchdog.phase("unwatched", 0);
  std::this_thread::sleep_for(milliseconds(300));
  watchdog.phase("watched", 0.1);
  watchdog.stop();
  std::this_thread::sleep_for(milliseconds(300));
  session().barrier();
}

TEST(Watchdog, ANewPhaseBeginsWithANewMark) {
  Watchdog watchdog(session());
  watchdog.phase("unwatched", 0);
  std::this_thread::sleep_for(milliseconds(300));
  watchdog.phase("watched", 0.2);
  std::this_thread::sleep_for(milliseconds(50));
  watchdog.phase(std::string(200, 'x'), 0);
}

TEST(Watchdog, WaitsForASlowRankThatMakesProgress) {
  Watchdog watchdog(session());
  watchdog.phase("one is slow", 0.3);
  if (session().rank() == session().world_size() - 1) {
    for (int part = 0; part < 12; ++part) {
      std::this_thread::sleep_for(milliseconds(100));
      watchdog.progress();
    }
  }
  session().together("waiting", [] {});
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
