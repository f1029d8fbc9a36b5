#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.hpp"
#include "base/file.hpp"
#include "store/run_lock.hpp"
#include "temporary_folder.hpp"

namespace ranktune::store {
namespace {

namespace fs = std::filesystem;
using ranktune::testing::TemporaryFolder;

void age(const fs::path& path, long seconds) {
  struct timespec times[2] = {};
  ::clock_gettime(CLOCK_REALTIME, &times[0]);
  times[0].tv_sec -= seconds;
  times[1] = times[0];
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

// A child that takes the lock, says so, and waits to be killed.
pid_t child_with_lock(const fs::path& folder) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder);
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

TEST(RunLock, IsExclusiveAndGoesAway) {
  const TemporaryFolder folder;
  const fs::path output = folder / "made/here";
  {
    RunLock lock(output);
    EXPECT_TRUE(lock.still_ours());
    lock.refresh();
    EXPECT_THROW(RunLock second(output), UserError);
    EXPECT_TRUE(lock.still_ours());
    EXPECT_EQ(nlohmann::json::parse(read_file(output / "run.lock"))["token"], lock.token());
  }
  EXPECT_TRUE(fs::is_empty(output));
  const RunLock again(output);
  EXPECT_TRUE(again.still_ours());
}

TEST(RunLock, NamesALiveOwner) {
  const TemporaryFolder folder;
  const pid_t child = child_with_lock(folder.path());
  try {
    const RunLock lock(folder.path());
    ADD_FAILURE() << "a live owner was robbed";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("process " + std::to_string(child)), std::string::npos)
        << error.what();
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(RunLock, IsTakenOverFromAKilledOwnerAtOnceEvenWhenNobodyReapedIt) {
  const TemporaryFolder folder;
  const pid_t child = child_with_lock(folder.path());
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);  // a zombie now
  {
    const RunLock lock(folder.path());
    EXPECT_TRUE(lock.still_ours());
  }
  ::waitpid(child, nullptr, 0);
}

LockOwner elsewhere(std::string job_id, std::int64_t restart_count) {
  LockOwner owner = LockOwner::self();
  owner.host = "another-host";
  owner.job_id = std::move(job_id);
  owner.restart_count = restart_count;
  return owner;
}

// A lock left behind by `owner`.
void leave_lock(const fs::path& folder, const LockOwner& owner) {
  std::string content;
  {
    const RunLock lock(folder, owner);
    content = read_file(folder / "run.lock");
  }
  std::ofstream(folder / "run.lock") << content;
}

TEST(RunLock, IsTakenOverByTheSameJobRestartedAndByNoOther) {
  const TemporaryFolder folder;
  leave_lock(folder.path(), elsewhere("42", 0));
  EXPECT_THROW(RunLock lock(folder.path(), elsewhere("43", 1)), UserError);
  EXPECT_THROW(RunLock lock(folder.path(), elsewhere("42", 0)), UserError);
  EXPECT_THROW(RunLock lock(folder.path(), elsewhere("", 1)), UserError);
  const RunLock lock(folder.path(), elsewhere("42", 1));
  EXPECT_TRUE(lock.still_ours());
}

TEST(RunLock, AReusedProcessIdIsNotTheOwner) {
  const TemporaryFolder folder;
  LockOwner owner = LockOwner::self();
  owner.process_started -= 1;
  leave_lock(folder.path(), owner);
  const RunLock lock(folder.path());
  EXPECT_TRUE(lock.still_ours());
}

TEST(RunLock, IsTakenOverWhenLeftAloneForTwoMinutes) {
  const TemporaryFolder folder;
  leave_lock(folder.path(), elsewhere("42", 0));
  age(folder / "run.lock", 110);
  EXPECT_THROW(RunLock lock(folder.path()), UserError);
  age(folder / "run.lock", 130);
  const RunLock lock(folder.path());
  EXPECT_TRUE(lock.still_ours());
}

TEST(RunLock, TheRobbedOwnerNoticesAndLeavesTheNewLock) {
  const TemporaryFolder folder;
  auto first = std::make_unique<RunLock>(folder.path(), elsewhere("42", 0));
  const RunLock second(folder.path(), elsewhere("42", 1));
  EXPECT_FALSE(first->still_ours());
  EXPECT_THROW(first->refresh(), Failure);
  first.reset();
  EXPECT_TRUE(second.still_ours());
}

TEST(RunLock, RespectsWhatItCannotRead) {
  const TemporaryFolder folder;
  std::ofstream(folder / "run.lock") << "{\"job";
  EXPECT_THROW(RunLock lock(folder.path()), UserError);
  age(folder / "run.lock", 130);
  const RunLock lock(folder.path());
  EXPECT_TRUE(lock.still_ours());
}

TEST(RunLock, OneOfManyContendersWins) {
  const TemporaryFolder folder;
  LockOwner dead = LockOwner::self();
  dead.process_started -= 1;
  for (int round = 0; round < 20; ++round) {
    leave_lock(folder.path(), dead);
    std::vector<std::unique_ptr<RunLock>> locks(4);
    {
      std::vector<std::jthread> threads;
      for (auto& lock : locks) {
        threads.emplace_back([&lock, &folder] {
          try {
            lock = std::make_unique<RunLock>(folder.path());
          } catch (const UserError&) {
          }
        });
      }
    }
    int winners = 0;
    for (const auto& lock : locks) winners += lock != nullptr && lock->still_ours() ? 1 : 0;
    int holders = 0;
    for (const auto& lock : locks) holders += lock != nullptr ? 1 : 0;
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(holders, 1);
  }
}

TEST(RunLock, SaysWhereItCannotWrite) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "";
  EXPECT_THROW(RunLock lock(folder / "file"), UserError);
}

}  // namespace
}  // namespace ranktune::store
