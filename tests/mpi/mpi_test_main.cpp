// main of the tests that run on several ranks: mpirun -np N test --ranks=N [gtest flags].
//
// All ranks run the same tests. Rank 0 prints as GoogleTest does, the others only what failed, with their
// rank in front. The exit code is the largest of all ranks: 1 when any test failed on any rank, 77 when all
// were skipped.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "mpi_test.hpp"

namespace ranktune::testing {
namespace {

const cluster::Session* current_session = nullptr;

class FailuresOnly final : public ::testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: Failure\n%s\n", rank_,
                 result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                 result.message());
    std::fflush(stderr);
  }

 private:
  int rank_;
};

int asked_ranks(int argc, char** argv) {
  constexpr std::string_view kFlag = "--ranks=";
  for (int at = 1; at < argc; ++at) {
    const std::string_view argument = argv[at];
    if (argument.substr(0, kFlag.size()) == kFlag) return std::atoi(argv[at] + kFlag.size());
  }
  return 0;
}

void print_failures_only(int rank) {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOnly(rank));
}

int run(int argc, char** argv) {
  const cluster::Session session;
  current_session = &session;
  const int asked = asked_ranks(argc, argv);
  if (session.world_size() != asked) {
    std::fprintf(stderr, "This run has %d ranks where %d were asked for\n", session.world_size(), asked);
    return 1;
  }
  if (session.rank() != 0) print_failures_only(session.rank());
  const int mine = RUN_ALL_TESTS();
  const auto& unit = *::testing::UnitTest::GetInstance();
  const bool nothing_ran = unit.test_to_run_count() == 0;
  const bool all_skipped = unit.skipped_test_count() == unit.test_to_run_count();
  const auto failed = session.max(mine != 0 || nothing_ran ? 1 : 0);
  const auto ran = session.max(all_skipped ? 0 : 1);
  return failed != 0 ? 1 : (ran != 0 ? 0 : 77);
}

}  // namespace

const cluster::Session& session() {
  return *current_session;
}

}  // namespace ranktune::testing

int main(int argc, char** argv) {
  try {
    ranktune::cluster::block_signals();
    ::testing::InitGoogleTest(&argc, argv);
    return ranktune::testing::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
