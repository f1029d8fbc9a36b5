#include "data/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace ranktune::data {
namespace {

TEST(ForEachBlock, VisitsEveryRowOnce) {
  for (const std::size_t threads : {1U, 3U, 16U}) {
    for (const std::size_t count : {0U, 1U, 9U, 10U, 11U, 1000U}) {
      const ParallelOptions options{.threads = threads, .block = 10, .progress = {}};
      std::vector<std::atomic<int>> visits(count);
      std::atomic<std::size_t> blocks = 0;
      for_each_block(count, options, [&](std::size_t block, std::size_t begin, std::size_t end) {
        EXPECT_EQ(begin, block * 10);
        ++blocks;
        for (std::size_t i = begin; i < end; ++i) ++visits[i];
      });
      EXPECT_EQ(blocks, block_count(count, options));
      for (const auto& visit : visits) EXPECT_EQ(visit, 1);
    }
  }
}

TEST(ForEachBlock, RethrowsTheFirstErrorInRowOrder) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::string caught;
    try {
      for_each_block(100, {.threads = 4, .block = 1, .progress = {}},
                     [](std::size_t block, std::size_t, std::size_t) {
                       if (block == 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                       if (block >= 3) throw std::runtime_error(std::to_string(block));
                     });
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    EXPECT_EQ(caught, "3");
  }
}

TEST(ForEachBlock, ReportsProgressOnTheCallingThread) {
  const auto caller = std::this_thread::get_id();
  std::vector<std::size_t> reports;
  for_each_block(3,
                 {.threads = 2,
                  .block = 1,
                  .progress =
                      [&](std::size_t done) {
                        EXPECT_EQ(std::this_thread::get_id(), caller);
                        reports.push_back(done);
                      }},
                 [](std::size_t, std::size_t, std::size_t) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(150));
                 });
  ASSERT_GE(reports.size(), 2U);  // some while it works, one at the end
  EXPECT_LT(reports.front(), 3U);
  EXPECT_EQ(reports.back(), 3U);
}

TEST(ForEachBlock, ProgressCanStopTheWork) {
  std::atomic<int> blocks = 0;
  const auto run = [&] {
    for_each_block(
        1000,
        {.threads = 2, .block = 1, .progress = [](std::size_t) { throw std::runtime_error("stopped"); }},
        [&](std::size_t, std::size_t, std::size_t) {
          ++blocks;
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        });
  };
  EXPECT_THROW(run(), std::runtime_error);
  EXPECT_LT(blocks, 1000);
}

}  // namespace
}  // namespace ranktune::data
