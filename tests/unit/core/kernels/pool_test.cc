// SPDX-License-Identifier: Apache-2.0
//
// Every task runs exactly once, whatever the number of threads, including after the threads slept,
// and always in the numeric environment.
#include "core/kernels/pool.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/kernels/isa.h"

namespace titan::kernels {
namespace {

TEST(PoolTest, RunsEveryTaskOnceForAnyNumberOfThreads) {
  for (int threads = 1; threads <= 4; ++threads) {
    Pool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int round = 0; round < 300; ++round) {
      const int tasks = round % 17;
      std::vector<int> runs(tasks, 0);
      pool.Run(tasks, [&](int task) { ++runs[task]; });
      EXPECT_EQ(runs, std::vector<int>(tasks, 1));
    }
  }
}

TEST(PoolTest, WakesSleepingThreads) {
  Pool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // far beyond the spin
    std::vector<int> runs(64, 0);
    pool.Run(64, [&](int task) { ++runs[task]; });
    EXPECT_EQ(runs, std::vector<int>(64, 1));
  }
}

TEST(PoolTest, TheCallerSleepsThroughALongTailAndWakes) {
  Pool pool(2);
  const auto caller = std::this_thread::get_id();
  const auto processor_time = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  };
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> runs{0};
    auto before = processor_time();
    // Two tasks that meet, so that each thread has one; the other thread's then takes long.
    pool.Run(2, [&](int) {
      ++runs;
      while (runs.load() < 2) std::this_thread::yield();
      if (std::this_thread::get_id() == caller) {
        before = processor_time();
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
      }
      ++runs;
    });
    EXPECT_EQ(runs, 4);
    EXPECT_LT(processor_time() - before, std::chrono::milliseconds(30));
  }
}

// Tails of every length around the spin, so that the caller's falling asleep and the last task's
// end meet in every order.
TEST(PoolTest, NoNoticeIsLostAroundTheSpin) {
  Pool pool(3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int> runs(4, 0);
    const auto tail = std::chrono::microseconds(round % 60);
    pool.Run(4, [&](int task) {
      const auto until = std::chrono::steady_clock::now() + (task == 3 ? tail : tail / 8);
      while (std::chrono::steady_clock::now() < until) {
      }
      ++runs[task];
    });
    ASSERT_EQ(runs, std::vector<int>(4, 1));
  }
}

TEST(PoolTest, TasksRunInTheNumericEnvironmentAndTheCallerGetsItsOwnBack) {
  Pool pool(2);
  ASSERT_FALSE(NumericEnvironmentIsSet());
  std::vector<char> set(200, 0);
  pool.Run(200, [&](int task) { set[task] = NumericEnvironmentIsSet() ? 1 : 0; });
  EXPECT_EQ(set, std::vector<char>(200, 1));
  EXPECT_FALSE(NumericEnvironmentIsSet());
}

TEST(PoolDeathTest, ANestedRunIsABug) {
  Pool pool(1);
  EXPECT_DEATH(pool.Run(1, [&](int) { pool.Run(1, [](int) {}); }), "check failed");
}

}  // namespace
}  // namespace titan::kernels
