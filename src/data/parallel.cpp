#include "data/parallel.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ranktune::data {
namespace {

using Work = std::function<void(std::size_t, std::size_t, std::size_t)>;

class BlockQueue {
 public:
  BlockQueue(std::size_t count, const ParallelOptions& options, const Work& work)
      : count_(count), block_(std::max<std::size_t>(options.block, 1)), work_(work) {}

  // A thread's whole life: takes blocks until none is left or something stopped the work.
  void run() {
    std::size_t index = 0;
    while (take(index)) {
      const std::size_t begin = index * block_;
      const std::size_t end = std::min(count_, begin + block_);
      std::exception_ptr error;
      try {
        work_(index, begin, end);
      } catch (...) {
        error = std::current_exception();
      }
      finish(index, end - begin, error);
    }
    const std::lock_guard lock(mutex_);
    ++ended_;
    changed_.notify_one();
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }

  // Waits until all of `threads` have ended, or a tenth of a second. True at the end.
  bool wait_for_end(std::size_t threads) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return ended_ == threads; });
  }

  std::size_t done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool take(std::size_t& index) {
    const std::lock_guard lock(mutex_);
    if (stopped_ || next_ * block_ >= count_) return false;
    index = next_++;
    return true;
  }

  void finish(std::size_t index, std::size_t rows, const std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    done_ += rows;
    if (!error) return;
    stopped_ = true;
    if (!error_ || index < error_block_) {
      error_ = error;
      error_block_ = index;
    }
  }

  const std::size_t count_;
  const std::size_t block_;
  const Work& work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0;
  std::size_t done_ = 0;
  std::size_t ended_ = 0;
  bool stopped_ = false;
  std::exception_ptr error_;
  std::size_t error_block_ = 0;
};

// Tells the threads to stop when the caller leaves by an exception; std::jthread then joins them.
class StopAtExit {
 public:
  explicit StopAtExit(BlockQueue& queue) : queue_(queue) {}
  ~StopAtExit() { queue_.stop(); }
  StopAtExit(const StopAtExit&) = delete;
  StopAtExit& operator=(const StopAtExit&) = delete;

 private:
  BlockQueue& queue_;
};

}  // namespace

std::size_t block_count(std::size_t count, const ParallelOptions& options) {
  const std::size_t block = std::max<std::size_t>(options.block, 1);
  return count / block + (count % block != 0 ? 1 : 0);
}

void for_each_block(std::size_t count, const ParallelOptions& options, const Work& work) {
  BlockQueue queue(count, options, work);
  const std::size_t threads =
      std::clamp<std::size_t>(options.threads, 1, std::max<std::size_t>(block_count(count, options), 1));
  {
    std::vector<std::jthread> workers;
    const StopAtExit stop(queue);  // before the workers are joined
    for (std::size_t i = 0; i < threads; ++i) workers.emplace_back([&queue] { queue.run(); });
    while (!queue.wait_for_end(threads)) {
      if (options.progress) options.progress(queue.done());
    }
  }
  queue.rethrow();
  if (options.progress) options.progress(count);
}

}  // namespace ranktune::data
