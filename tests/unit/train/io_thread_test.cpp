#include "train/io_thread.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <vector>

namespace ranktune::train {
namespace {

TEST(IoThread, RunsTasksInOrder) {
  std::vector<int> order;
  IoThread thread;
  for (int i = 0; i < 100; ++i) thread.submit([&order, i] { order.push_back(i); });
  thread.drain();
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(IoThread, AnErrorIsRethrownAndLaterTasksDoNotRun) {
  std::atomic<int> ran{0};
  IoThread thread;
  thread.submit([] { throw std::runtime_error("disk full"); });
  EXPECT_THROW(thread.drain(), std::runtime_error);
  EXPECT_THROW(thread.submit([&ran] { ++ran; }), std::runtime_error);
  EXPECT_EQ(ran, 0);
}

TEST(IoThread, WhatWasSubmittedIsDoneBeforeItEnds) {
  std::atomic<int> ran{0};
  {
    IoThread thread;
    for (int i = 0; i < 50; ++i) thread.submit([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST(IoThread, TheIdleTaskRunsBetweenTasks) {
  std::atomic<int> idle{0};
  IoThread thread([&idle] { ++idle; }, 0.01);
  const auto begin = std::chrono::steady_clock::now();
  while (idle < 3 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    thread.submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    thread.drain();
  }
  EXPECT_GE(idle, 3);
}

}  // namespace
}  // namespace ranktune::train
