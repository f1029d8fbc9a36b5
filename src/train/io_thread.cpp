#include "train/io_thread.hpp"

#include <chrono>
#include <utility>

namespace ranktune::train {

IoThread::IoThread(std::function<void()> idle, double idle_seconds)
    : thread_([this, idle = std::move(idle), idle_seconds] { run(idle, idle_seconds); }) {}

IoThread::~IoThread() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  wake_.notify_all();
}

void IoThread::run(const std::function<void()>& idle, double idle_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto interval =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(idle_seconds));
  auto next_idle = Clock::now() + interval;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_until(lock, next_idle, [this] { return end_ || !tasks_.empty(); });
    std::function<void()> task;
    if (!tasks_.empty()) {
      task = std::move(tasks_.front());
      tasks_.pop_front();
    } else if (end_) {
      return;
    }
    busy_ = true;
    const bool skip = error_ != nullptr;
    lock.unlock();
    std::exception_ptr problem;
    try {
      if (task && !skip) task();
      if (idle && Clock::now() >= next_idle) idle();
    } catch (...) {
      problem = std::current_exception();
    }
    task = nullptr;  // what it holds goes before anyone is told that it is done
    if (Clock::now() >= next_idle) next_idle = Clock::now() + interval;
    lock.lock();
    if (problem && !error_) error_ = problem;
    busy_ = false;
    done_.notify_all();
  }
}

void IoThread::submit(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  tasks_.push_back(std::move(task));
  wake_.notify_all();
}

void IoThread::drain() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace ranktune::train
