// SPDX-License-Identifier: Apache-2.0
//
// Goal: slots are made ahead of need, and nobody waits for more than the ones it needs; whatever
// happens to the run meanwhile, no memory is left over and everybody is told. Method: a whole store
// whose slots are made when the test says so.
#include "weightstore/slot_maker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/weightstore_host.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using testing::Host;
using testing::NumberIn;
using testing::Publish;
using testing::SmallManifest;

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

// Makes slots only up to `open` of each registration's order; those of `failing` cannot be had.
class Gate {
 public:
  SlotMaker::Make Make() {
    return [this](const SlotRequest& slot, const SlotMemory::Wanted& wanted) -> SlotMaker::Made {
      ++started;
      for (;;) {
        {
          std::lock_guard lock(mutex_);
          if (slot.order < open_) break;
        }
        if (!wanted()) {
          ++broken_off;
          return Cancelled("not wanted");
        }
        std::this_thread::sleep_for(milliseconds(1));
      }
      if (failing == static_cast<int>(slot.order)) return ResourceExhausted("no page is left");
      return SlotMemory::Create(slot.slot_id, slot.num_bytes, slot.writer, wanted);
    };
  }
  void Open(uint32_t slots) {
    std::lock_guard lock(mutex_);
    open_ = slots;
  }
  std::atomic<int> started{0}, broken_off{0}, failing{-1};

 private:
  std::mutex mutex_;
  uint32_t open_ = 0;
};

class SlotMakerTest : public ::testing::Test {
 protected:
  explicit SlotMakerTest(uint64_t memory_limit_bytes = 64u << 20) : host_(memory_limit_bytes) {
    host_.Stop();
    host_.make_slot = gate_.Make();
    host_.Start();
  }
  Leader& leader() { return host_.leader(); }
  StatusOr<Registration> RegisterAs(const std::string& request_id) {
    return leader().RegisterTrainer(request_id, "run", SmallManifest(), 1, 1, "");  // 4 + 1 slots
  }
  // Nothing of a run is left, made or not.
  bool IsEmpty() {
    const LeaderStats stats = leader().Stats();
    return stats.slot_bytes + stats.bytes_being_made + stats.num_slots == 0;
  }

  Gate gate_;
  Host host_;
};

TEST_F(SlotMakerTest, TheFirstSlotIsEnoughToBeginAndTheNextIsWaitedFor) {
  gate_.Open(1);
  auto publisher = host_.Register(1);
  ASSERT_NE(publisher, nullptr);
  EXPECT_EQ(publisher->ring_slots(), 4u);
  Publish(*publisher, 0);
  const LeaderStats stats = leader().Stats();
  EXPECT_EQ(stats.num_slots, 1u);
  EXPECT_EQ(stats.bytes_being_made, 4 * SmallManifest().slot_bytes);
  auto slot = host_.Reader().Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();

  const Status early = publisher->Begin(1, milliseconds(20)).status();
  EXPECT_EQ(early.code(), StatusCode::kUnavailable) << early;
  EXPECT_NE(MessageOf(early).find("3 slots of run run are being made"), std::string::npos) << early;
  EXPECT_EQ(leader().Stats().begin_blocked, 0u);  // no reader is to blame
  host_.now_ms = 1'000'000;                       // nor is one stopped for it
  EXPECT_EQ(publisher->Begin(1, milliseconds(20)).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(slot->HeaderUnchanged());

  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(20));
    gate_.Open(5);
  });
  Publish(*publisher, 1);
  later.join();
  EXPECT_TRUE(Eventually([&] { return leader().Stats().num_slots == 5; }));
  EXPECT_EQ(leader().Stats().bytes_being_made, 0u);
  for (uint64_t v = 2; v < 9; ++v) Publish(*publisher, v);
  EXPECT_EQ(NumberIn(slot->bytes()), 0u);
}

TEST_F(SlotMakerTest, ANewTokenTakesOverWhileSlotsAreMade) {
  auto first = std::async(std::launch::async, [&] { return RegisterAs("a"); });
  ASSERT_TRUE(Eventually([&] { return gate_.started == 1; }));
  auto second = std::async(std::launch::async, [&] { return RegisterAs("b"); });
  EXPECT_EQ(first.get().status().code(), StatusCode::kAborted);
  EXPECT_TRUE(Eventually([&] { return gate_.broken_off == 1; }));
  // What was being made counts no more; what is made for the new token does, once.
  EXPECT_EQ(leader().Stats().bytes_being_made, 5 * SmallManifest().slot_bytes);
  gate_.Open(5);
  const auto registration = second.get();
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(registration->epoch, 2u);
  EXPECT_TRUE(Eventually([&] { return leader().Stats().num_slots == 5; }));
  EXPECT_EQ(gate_.broken_off, 1);
  EXPECT_EQ(gate_.started, 6);  // none of the first token's after the one that was being made
}

TEST_F(SlotMakerTest, ARepeatedRequestWaitsForTheSameSlot) {
  auto first = std::async(std::launch::async, [&] { return RegisterAs("a"); });
  auto again = std::async(std::launch::async, [&] { return RegisterAs("a"); });
  ASSERT_TRUE(Eventually([&] { return gate_.started == 1; }));
  gate_.Open(5);
  EXPECT_EQ(first.get()->epoch, 1u);
  EXPECT_EQ(again.get()->epoch, 1u);
}

TEST_F(SlotMakerTest, TheEndOfARunEndsTheWaitAndNoMemoryIsLeft) {
  gate_.Open(1);
  auto publisher = host_.Register(1);
  Publish(*publisher, 0);
  auto waiting =
      std::async(std::launch::async, [&] { return publisher->Begin(1, std::chrono::seconds(30)); });
  auto pinning =
      std::async(std::launch::async, [&] { return leader().PinForEvaluation("run", 0); });
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_TRUE(leader().EndRun("run", 0).ok());
  EXPECT_EQ(waiting.get().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(pinning.get().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsEmpty());
  EXPECT_TRUE(Eventually([&] { return gate_.broken_off == 1; }));
  gate_.Open(5);
  EXPECT_TRUE(IsEmpty());
  EXPECT_EQ(gate_.started, 2);  // the others were never begun
}

TEST_F(SlotMakerTest, ARunThatEndsBeforeItsFirstSlotTellsWhoRegistered) {
  auto first = std::async(std::launch::async, [&] { return RegisterAs("a"); });
  ASSERT_TRUE(Eventually([&] { return gate_.started == 1; }));
  ASSERT_TRUE(leader().EndRun("run", 0).ok());
  EXPECT_EQ(first.get().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsEmpty());
}

TEST_F(SlotMakerTest, AWriterThatGoesAwayTakesTheSlotsThatAreMadeForItAlong) {
  gate_.Open(1);
  auto publisher = host_.Register(1);
  Publish(*publisher, 0);
  publisher.reset();
  // Version 0 is served on, and the evaluation slot belongs to the run.
  EXPECT_TRUE(
      Eventually([&] { return leader().Stats().bytes_being_made == SmallManifest().slot_bytes; }));
  gate_.Open(5);
  EXPECT_TRUE(Eventually([&] { return leader().Stats().num_slots == 2; }));
  ASSERT_TRUE(leader().PinForEvaluation("run", 0).ok());
}

TEST_F(SlotMakerTest, EvaluationWaitsForItsSlot) {
  gate_.Open(1);
  auto publisher = host_.Register(1);
  Publish(*publisher, 0);
  auto pinning =
      std::async(std::launch::async, [&] { return leader().PinForEvaluation("run", 0); });
  EXPECT_EQ(pinning.wait_for(milliseconds(30)), std::future_status::timeout);
  gate_.Open(5);
  const auto pinned = pinning.get();
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  auto slot = host_.Reader().Acquire("run", 0, /*evaluation=*/true);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(slot->lease().digest, *pinned);
}

TEST_F(SlotMakerTest, AFirstSlotThatCannotBeHadRefusesTheRegistration) {
  gate_.Open(5);
  gate_.failing = 0;
  for (int i = 0; i < 2; ++i) {
    const Status refused = RegisterAs("a").status();
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
    EXPECT_NE(MessageOf(refused).find("a slot of run run cannot be made: no page is left"),
              std::string::npos)
        << refused;
    EXPECT_EQ(leader().Stats().bytes_being_made, 0u);
  }
  gate_.failing = -1;
  const auto registration = RegisterAs("a");  // the same request, tried anew
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(registration->epoch, 3u);
}

TEST_F(SlotMakerTest, ALaterSlotThatCannotBeHadFailsTheNextVersionAndServesTheOthers) {
  gate_.Open(2);
  gate_.failing = 2;
  auto publisher = host_.Register(1);
  const Hash128 digest = Publish(*publisher, 0);
  Publish(*publisher, 1);
  auto waiting =
      std::async(std::launch::async, [&] { return publisher->Begin(2, std::chrono::seconds(30)); });
  auto pinning =
      std::async(std::launch::async, [&] { return leader().PinForEvaluation("run", 0); });
  std::this_thread::sleep_for(milliseconds(20));
  gate_.Open(5);
  const Status failed = waiting.get().status();
  EXPECT_EQ(failed.code(), StatusCode::kResourceExhausted) << failed;
  EXPECT_NE(MessageOf(failed).find("no page is left"), std::string::npos) << failed;
  EXPECT_EQ(pinning.get().status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(leader().Stats().bytes_being_made, 0u);
  auto slot = host_.Reader().Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(slot->lease().digest, digest);
  gate_.failing = -1;
  auto next = host_.Register(1);
  ASSERT_NE(next, nullptr);
  Publish(*next, 2);
  EXPECT_TRUE(leader().PinForEvaluation("run", 0).ok());
}

TEST_F(SlotMakerTest, ShutdownEndsEveryWaitAndWhatIsBeingMade) {
  auto first = std::async(std::launch::async, [&] { return RegisterAs("a"); });
  ASSERT_TRUE(Eventually([&] { return gate_.started == 1; }));
  host_.Shutdown();
  EXPECT_EQ(first.get().status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return gate_.broken_off == 1; }));
  host_.Stop();
}

class SmallSlotMakerTest : public SlotMakerTest {
 protected:
  SmallSlotMakerTest() : SlotMakerTest(SmallManifest().slot_bytes * 8) {}
};

TEST_F(SmallSlotMakerTest, SlotsThatAreNotMadeYetCountTowardsTheLimit) {
  gate_.Open(1);
  ASSERT_TRUE(RegisterAs("a").ok());
  const Status refused = leader().RegisterTrainer("b", "other", SmallManifest(), 0, 1, "").status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(refused).find(std::to_string(5 * SmallManifest().slot_bytes)),
            std::string::npos)
      << refused;
  ASSERT_TRUE(leader().EndRun("run", 0).ok());
  EXPECT_TRUE(leader().RegisterTrainer("b", "other", SmallManifest(), 0, 1, "").ok());
}

// One slot of two pieces: with others at work the second comes after a long rest.
TEST(SlotMakerPaceTest, WhatNobodyWaitsForTakesATenthOfTheTimeUntilSomebodyDoes) {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<uint64_t> made;
  std::atomic<int> pieces{0};
  SlotMaker maker(
      [&](const SlotRequest& slot, const SlotMemory::Wanted& wanted) -> SlotMaker::Made {
        for (int i = 0; i < 2; ++i) {
          std::this_thread::sleep_for(milliseconds(50));
          ++pieces;
          if (!wanted()) return Cancelled("");
        }
        return SlotMemory::Create(slot.slot_id, slot.num_bytes, slot.writer);
      },
      [&](const SlotRequest& slot, SlotMaker::Made) {
        std::lock_guard lock(mutex);
        made.insert(slot.slot_id);
        changed.notify_all();
      });
  const auto wait_for = [&](uint64_t id) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(10), [&] { return made.contains(id); });
  };
  using std::chrono::steady_clock;
  auto start = steady_clock::now();
  maker.Add({.slot_id = 1, .num_bytes = 4096, .order = 0});
  ASSERT_TRUE(wait_for(1));
  const auto waited_for = steady_clock::now() - start;
  start = steady_clock::now();
  maker.Add({.slot_id = 2, .num_bytes = 4096, .order = 1});
  ASSERT_TRUE(wait_for(2));
  EXPECT_GE(steady_clock::now() - start, milliseconds(900));  // 2 x 50 ms, and the rests
  EXPECT_GE(steady_clock::now() - start, 3 * waited_for);
  pieces = 0;
  start = steady_clock::now();
  maker.Add({.slot_id = 3, .num_bytes = 4096, .order = 1});
  ASSERT_TRUE(Eventually([&] { return pieces == 1; }));
  maker.Hurry();
  ASSERT_TRUE(wait_for(3));
  EXPECT_LT(steady_clock::now() - start, milliseconds(900));
  pieces = 0;
  maker.Add({.slot_id = 4, .num_bytes = 4096, .order = 1});
  ASSERT_TRUE(Eventually([&] { return pieces == 1; }));
  maker.Forget({4});
  maker.Add({.slot_id = 5, .num_bytes = 4096, .order = 1});
  ASSERT_TRUE(wait_for(5));
  EXPECT_FALSE(made.contains(4));
}

TEST(SlotMakerFreeTest, OnlyTheNextSlotWaitsUntilMemoryIsGivenBack) {
  std::promise<void> unmapped;
  const auto slow = [&](SlotMemory* memory) {
    unmapped.get_future().wait();
    delete memory;
  };
  std::atomic<int> begun{0}, made{0};
  SlotMaker maker(
      [&](const SlotRequest& slot, const SlotMemory::Wanted& wanted) {
        ++begun;
        return SlotMemory::Create(slot.slot_id, slot.num_bytes, slot.writer, wanted);
      },
      [&](const SlotRequest&, SlotMaker::Made result) { made += result.ok(); });
  const auto always = [] { return true; };
  auto memory = SlotMemory::Create(1, 4096, SlotMemory::Writer::kClient, always);
  ASSERT_TRUE(memory.ok());
  maker.Free(nullptr);
  maker.Free(std::shared_ptr<SlotMemory>(memory->release(), slow));  // returns at once
  maker.Add({.slot_id = 2, .num_bytes = 4096});
  maker.Add({.slot_id = 3, .num_bytes = 4096, .order = 1});
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(begun, 0);
  unmapped.set_value();
  EXPECT_TRUE(Eventually([&] { return made == 2; }));
}

}  // namespace
}  // namespace titan::weightstore
