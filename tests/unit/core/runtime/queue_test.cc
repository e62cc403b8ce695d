// SPDX-License-Identifier: Apache-2.0
// Goal: the bounded queue keeps its bound and its order and lets go of everyone when it closes; the
// blocking pool runs work, brings results back to the coroutine's thread, and refuses beyond its
// bound.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include "core/base/bounded_queue.h"
#include "core/base/clock.h"
#include "core/runtime/blocking_pool.h"

namespace titan::runtime {
namespace {

TEST(BoundedQueueTest, RefusesBeyondItsBoundAndKeepsOrder) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_TRUE(queue.TryPush(4));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(5));
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), 4);
  EXPECT_EQ(queue.Pop(), std::nullopt);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueueTest, EveryItemOfManyProducersArrivesOnce) {
  BoundedQueue<int> queue(3);
  std::atomic<int64_t> sum = 0;
  {
    std::vector<std::jthread> consumers;
    for (int c = 0; c < 2; ++c) {
      consumers.emplace_back([&] {
        while (auto item = queue.Pop()) sum += *item;
      });
    }
    {
      std::vector<std::jthread> producers;
      for (int p = 0; p < 3; ++p) {
        producers.emplace_back([&, p] {
          for (int i = 0; i < 1000; ++i) EXPECT_TRUE(queue.Push(p * 1000 + i));
        });
      }
    }
    queue.Close();
  }
  EXPECT_EQ(sum, 2999 * 3000 / 2);
}

TEST(BlockingPoolTest, ResultsComeBackOnTheCoroutinesThread) {
  asio::io_context io;
  BlockingPool pool({.threads = 2});
  std::thread::id worked, resumed;
  StatusOr<int> result = 0;
  const auto shared = std::make_shared<int>(7);
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        const auto work = [&, alive = shared]() -> StatusOr<int> {
          worked = std::this_thread::get_id();
          return *alive;
        };
        result = co_await pool.Run(work);
        resumed = std::this_thread::get_id();
      },
      [](std::exception_ptr failure) { EXPECT_FALSE(failure); });
  io.run();
  EXPECT_EQ(*result, 7);
  EXPECT_EQ(shared.use_count(), 1);  // the work was destroyed once
  EXPECT_EQ(resumed, std::this_thread::get_id());
  EXPECT_NE(worked, resumed);
}

TEST(BlockingPoolTest, RefusesWhenFullAndAfterStop) {
  BlockingPool pool({.threads = 1, .max_queued = 1});
  std::latch started(1), release(1);
  ASSERT_TRUE(pool.Post([&] {
                    started.count_down();
                    release.wait();
                  })
                  .ok());
  started.wait();
  EXPECT_TRUE(pool.Post([] {}).ok());
  EXPECT_EQ(pool.Post([] {}).code(), StatusCode::kResourceExhausted);
  release.count_down();
  pool.Stop();
  EXPECT_EQ(pool.Post([] {}).code(), StatusCode::kCancelled);
}

TEST(ClockTest, ManualClockMovesOnlyWhenMoved) {
  ManualClock clock(1000);
  const Instant before = clock.Now();
  EXPECT_EQ(clock.Now(), before);
  clock.Advance(std::chrono::milliseconds(250));
  EXPECT_EQ(clock.UnixMs(), 1250);
  EXPECT_DOUBLE_EQ(Seconds(clock.Now() - before), 0.25);
}

}  // namespace
}  // namespace titan::runtime
