// SPDX-License-Identifier: Apache-2.0
// Goal: every Submit gets its on_end exactly once, also when the thread stops before it looked at
// the command, and what was queued by then is still run.
#include "generator/engine_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "core/kernels/isa.h"
#include "tests/support/tiny_model.h"

namespace titan::generator {
namespace {

const VersionKey kVersion{"run", 3, false};

class EngineThreadTest : public ::testing::Test {
 protected:
  EngineThreadTest() : model_(testing::LoadTinyModel("llama_llama3rope_tied")), pool_(2) {
    auto engine = Engine::Create(*model_.decoder, pool_, {});
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->AddVersion(kVersion, model_.slot.get(), [] { return true; }).ok());
    thread_ = std::make_unique<EngineThread>(*std::move(engine));
  }

  GroupRequest Request(uint32_t group) const {
    GroupRequest request;
    request.version = kVersion;
    request.group = MakeGroupId(5, group, 0);
    request.prompt = {5, 6, 7};
    for (uint32_t s = 0; s < 2; ++s) request.samples.push_back({s, MakeSampleId(request.group, s)});
    request.max_new_tokens = 4;
    return request;
  }

  testing::TinyModel model_;
  kernels::Pool pool_;
  std::unique_ptr<EngineThread> thread_;
};

struct Outcome {
  std::atomic<int> samples{0};
  std::atomic<int> ends{0};
  std::promise<Status> end;

  EngineThread::Listener Listen() {
    return {[this](SampleResult) { ++samples; },
            [this](Status status) {
              if (++ends == 1) end.set_value(std::move(status));
            }};
  }
};

TEST_F(EngineThreadTest, SamplesComeThenTheEnd) {
  Outcome good, refused;
  thread_->Submit(Request(0), good.Listen());
  GroupRequest bad = Request(1);
  bad.prompt.clear();
  thread_->Submit(std::move(bad), refused.Listen());
  EXPECT_TRUE(good.end.get_future().get().ok());
  EXPECT_EQ(refused.end.get_future().get().code(), StatusCode::kInvalidArgument);
  thread_.reset();
  EXPECT_EQ(good.samples, 2);
  EXPECT_EQ(good.ends, 1);
  EXPECT_EQ(refused.samples, 0);
  EXPECT_EQ(refused.ends, 1);
}

TEST_F(EngineThreadTest, CommandsQueuedWhenItStopsAreRunAndEveryRequestEndsOnce) {
  constexpr int kRequests = 8;
  EngineThread* const engine_thread = thread_.get();
  std::promise<void> entered, release;
  thread_->Do([&](Engine&) {
    entered.set_value();
    release.get_future().wait();
  });
  entered.get_future().wait();
  // The engine thread stands inside a command; all that follows waits behind it.
  Outcome outcomes[kRequests], late;
  for (uint32_t g = 0; g < kRequests; ++g) thread_->Submit(Request(g), outcomes[g].Listen());
  const EngineThread::Ticket ticket =
      thread_->Submit(Request(99), {[](SampleResult) {},
                                    [&](Status) {
                                      // A listener that tries again while all ends.
                                      engine_thread->Submit(Request(100), late.Listen());
                                    }});
  EXPECT_GT(ticket, 0u);
  bool ran = false;
  thread_->Do([&](Engine& engine) {
    ran = true;
    EXPECT_TRUE(kernels::NumericEnvironmentIsSet());
    EXPECT_TRUE(engine.Holds(kVersion));
  });
  std::thread destroyer([this] { thread_.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until it has set its stop
  release.set_value();
  destroyer.join();
  EXPECT_TRUE(ran);
  for (Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.ends, 1);
    EXPECT_EQ(outcome.end.get_future().get().code(), StatusCode::kCancelled);
    EXPECT_EQ(outcome.samples, 0);
  }
  EXPECT_EQ(late.ends, 1);
}

}  // namespace
}  // namespace titan::generator
