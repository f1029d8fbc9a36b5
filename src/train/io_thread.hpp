// One thread that owns every file of the run, so that training goes on while rows and checkpoints are
// written.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace ranktune::train {

class IoThread {
 public:
  // `idle` is called every `idle_seconds` between tasks (for the lock's refresh); it may be empty.
  explicit IoThread(std::function<void()> idle = {}, double idle_seconds = 15);
  ~IoThread();  // finishes what was submitted; errors not yet taken are dropped
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Runs `task` after those before it. Rethrows here what an earlier task threw; after that no later task
  // runs.
  void submit(std::function<void()> task);
  // Waits for all tasks; rethrows what one of them threw.
  void drain();

 private:
  void run(const std::function<void()>& idle, double idle_seconds);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<std::function<void()>> tasks_;
  std::exception_ptr error_;
  bool busy_ = false;
  bool end_ = false;
  std::jthread thread_;
};

}  // namespace ranktune::train
