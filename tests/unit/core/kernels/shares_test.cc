// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/shares.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <vector>

namespace titan::kernels::internal {
namespace {

TEST(SharesTest, AnOwnerGoesThroughItsShareInOrderAndThenTakesTheLastTasksOfOthers) {
  Shares shares(3, 10);  // [0, 3), [3, 6), [6, 10)
  std::vector<int64_t> taken;
  for (int64_t task = shares.Next(1); task >= 0; task = shares.Next(1)) taken.push_back(task);
  EXPECT_EQ(taken, (std::vector<int64_t>{3, 4, 5, 9, 8, 7, 6, 2, 1, 0}));
  for (int share = 0; share < 3; ++share) EXPECT_EQ(shares.Next(share), -1);
}

TEST(SharesTest, SharesMayBeOfAnySize) {
  const int64_t starts[] = {0, 1, 1, 4};
  Shares shares(starts);
  std::vector<int64_t> taken;
  for (const int share : {1, 2, 0, 2, 0}) taken.push_back(shares.Next(share));
  EXPECT_EQ(taken, (std::vector<int64_t>{3, 1, 0, 2, -1}));
}

TEST(SharesTest, ATaskThatCostsMoreThanItSavesIsLeftToItsOwner) {
  Shares shares(2, 6);  // [0, 3), [3, 6)
  std::vector<int64_t> taken;
  for (int64_t task; (task = shares.Next(0, 2)) >= 0;) taken.push_back(task);
  EXPECT_EQ(taken, (std::vector<int64_t>{0, 1, 2, 5, 4}));
  EXPECT_EQ(shares.Next(1, 2), 3);
}

TEST(SharesTest, TasksRunInTheNumericEnvironmentForAnyNumberOfThreads) {
  constexpr unsigned kFlush = 0x8040;  // FTZ and DAZ
  const unsigned before = _mm_getcsr();
  for (int threads = 1; threads <= 2; ++threads) {
    Pool pool(threads);
    std::atomic<int> flushing{0};
    RunInShares(pool, 4, 1, [&](int64_t) { flushing += (_mm_getcsr() & kFlush) == kFlush; });
    EXPECT_EQ(flushing.load(), 4) << threads;
  }
  EXPECT_EQ(_mm_getcsr(), before);
}

TEST(SharesTest, EveryTaskRunsOnceWhoeverTakesIt) {
  for (int threads = 1; threads <= 4; ++threads) {
    Pool pool(threads);
    for (int tasks = 0; tasks < 300; ++tasks) {
      std::vector<int> runs(static_cast<size_t>(tasks), 0);
      RunInShares(pool, tasks, 1 + tasks % 3,
                  [&](int64_t task) { ++runs[static_cast<size_t>(task)]; });
      EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(tasks), 1));
    }
  }
}

// A share whose owner stands still in its first task is emptied by the others.
TEST(SharesTest, NobodyWaitsForASlowOwner) {
  constexpr int kTasks = 64;
  Pool pool(2);
  std::atomic<int> done{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  RunInShares(pool, kTasks, 1, [&](int64_t task) {
    if (task == 0) {
      while (done.load() < kTasks - 1 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      EXPECT_EQ(done.load(), kTasks - 1) << "the others waited";
    }
    done.fetch_add(1);
  });
  EXPECT_EQ(done.load(), kTasks);
}

}  // namespace
}  // namespace titan::kernels::internal
