// SPDX-License-Identifier: Apache-2.0
//
// Every task runs exactly once, whatever the number of threads, including after the threads slept,
// and always in the numeric environment.
#include "core/kernels/pool.h"

#include <gtest/gtest.h>

#include <chrono>
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
