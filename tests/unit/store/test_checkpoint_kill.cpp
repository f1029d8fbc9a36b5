// A process that is killed while it writes, replaces and prunes checkpoints leaves the last acknowledged one
// or a newer.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "base/error.hpp"
#include "store/atomic_directory.hpp"
#include "store/checkpoint.hpp"
#include "temporary_folder.hpp"

namespace ranktune::store {
namespace {

namespace fs = std::filesystem;
using ranktune::testing::TemporaryFolder;

std::vector<float> values_of(std::int64_t step) {
  return std::vector<float>(20'000, static_cast<float>(step));
}

void write_one(const fs::path& output, std::int64_t step) {
  const auto values = values_of(step);
  const std::vector<StateArray> arrays{{"parameters", values}};
  write_checkpoint(output, step, {{"model", "m"}}, nlohmann::json::object(), arrays,
                   std::to_string(::getpid()));
}

[[noreturn]] void write_until_killed(const fs::path& output, std::int64_t first, int acknowledge) {
  try {
    remove_stale_temporaries(output);
    for (std::int64_t step = first;; ++step) {
      write_one(output, step);
      if (step % 3 == 0) write_one(output, step);  // replaces itself
      prune_checkpoints(output, 2);
      if (::write(acknowledge, &step, sizeof(step)) != sizeof(step)) ::_exit(2);
    }
  } catch (...) {
    ::_exit(3);
  }
}

std::int64_t run_and_kill(const fs::path& output, std::int64_t first, std::chrono::microseconds delay) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    write_until_killed(output, first, pipe[1]);
  }
  ::close(pipe[1]);
  std::jthread killer([child, delay] {
    std::this_thread::sleep_for(delay);
    ::kill(child, SIGKILL);
  });
  std::int64_t last = first - 1;
  std::int64_t step = 0;
  while (::read(pipe[0], &step, sizeof(step)) == sizeof(step)) last = step;
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself: " << status;
  return last;
}

TEST(CheckpointKill, TheLastAcknowledgedCheckpointOrANewerOneIsUsed) {
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> delay(0, 150'000);
  const TemporaryFolder folder;
  std::int64_t acknowledged = 0;
  for (int repetition = 0; repetition < 20; ++repetition) {
    acknowledged = run_and_kill(folder.path(), acknowledged + 1, std::chrono::microseconds(delay(generator)));
    std::vector<std::string> rejected;
    const auto latest = latest_checkpoint(folder.path(), rejected);
    EXPECT_TRUE(rejected.empty()) << "seed " << seed << ": " << rejected.front();
    if (acknowledged == 0) continue;
    ASSERT_TRUE(latest.has_value()) << "seed " << seed;
    const Checkpoint checkpoint = read_checkpoint(*latest);
    ASSERT_GE(checkpoint.step, acknowledged) << "seed " << seed;
    EXPECT_EQ(checkpoint.array("parameters"), values_of(checkpoint.step)) << "seed " << seed;
    acknowledged = checkpoint.step;
  }
  EXPECT_GT(acknowledged, 0) << "no child lived long enough to write a checkpoint";
  remove_stale_temporaries(folder.path());
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name.find(".tmp-") == std::string::npos && name.find(".old-") == std::string::npos) << name;
  }
}

}  // namespace
}  // namespace ranktune::store
