// A writer that is killed at a random instant leaves a readable file with every row that it has acknowledged.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "metrics_rows.hpp"
#include "store/metrics.hpp"
#include "temporary_folder.hpp"

namespace ranktune::store {
namespace {

namespace fs = std::filesystem;
using namespace ranktune::testing;

// Writes rows for ever, each acknowledged through the pipe after write() has returned.
[[noreturn]] void write_until_killed(const fs::path& output, std::int64_t resumed_from, int acknowledge) {
  try {
    MetricsWriter writer(output, resumed_from, provenance());
    for (std::int64_t step = resumed_from + 1;; ++step) {
      writer.write(step_row(step));
      if (::write(acknowledge, &step, sizeof(step)) != sizeof(step)) ::_exit(2);
      writer.write(rank_rows(step));
      if (step % 7 == 0) writer.write(EventRow{1, step, "checkpoint", "written"});
      if (step % 50 == 0) writer.sync();
    }
  } catch (...) {
    ::_exit(3);
  }
}

// The last acknowledged step of a child that was killed after `delay`.
std::int64_t run_and_kill(const fs::path& output, std::int64_t resumed_from,
                          std::chrono::microseconds delay) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    write_until_killed(output, resumed_from, pipe[1]);
  }
  ::close(pipe[1]);
  std::jthread killer([child, delay] {
    std::this_thread::sleep_for(delay);
    ::kill(child, SIGKILL);
  });
  std::int64_t last = resumed_from;
  std::int64_t step = 0;
  while (::read(pipe[0], &step, sizeof(step)) == sizeof(step)) last = step;
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself: " << status;
  return last;
}

TEST(MetricsKill, EveryAcknowledgedRowIsThereAfterAnyKill) {
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> delay(0, 150'000);
  std::int64_t acknowledged = 0;
  for (int repetition = 0; repetition < 30; ++repetition) {
    const TemporaryFolder folder;
    std::int64_t last = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {  // the second resumes where the first was killed
      last = run_and_kill(folder.path(), last, std::chrono::microseconds(delay(generator)));
      std::vector<StepRow> rows;
      ASSERT_NO_THROW(rows = read_steps(folder.path())) << "seed " << seed << ", repetition " << repetition;
      ASSERT_GE(rows.size(), static_cast<std::size_t>(last))
          << "seed " << seed << ", repetition " << repetition;
      for (std::size_t i = 0; i < static_cast<std::size_t>(last); ++i) {
        ASSERT_TRUE(same(rows[i], step_row(static_cast<std::int64_t>(i) + 1)))
            << "seed " << seed << ", row " << i;
      }
    }
    acknowledged += last;
  }
  EXPECT_GT(acknowledged, 0) << "no child lived long enough to write a row";
}

}  // namespace
}  // namespace ranktune::store
