// Tests that must not pass: they prove that the harness sees one rank's failure.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "mpi_test.hpp"

namespace ranktune::testing {

TEST(Fault, RankOneFails) {
  EXPECT_NE(session().rank(), 1) << "only rank 1 fails";
}

TEST(Fault, RankOneHangs) {
  if (session().rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(10));
  session().barrier();
}

TEST(Fault, None) {}

}  // namespace ranktune::testing
