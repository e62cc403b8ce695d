// SPDX-License-Identifier: Apache-2.0
//
// Goal: what the checkpointer sends is the state of its version, the next step may take a snapshot
// as soon as one is written, and no store, however it fails, holds up the end of a run. Method: a
// store that is played, which keeps what it was given to ask with, and may never answer.
#include "services/trainer/checkpointer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "services/models/manifest_of.h"
#include "services/trainer/checkpoint.h"
#include "tests/support/small_model.h"

namespace titan::services {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class PlayedStore final : public weightstore::CheckpointPort {
 public:
  Status PutCheckpoint(const weightstore::Checkpoint& checkpoint,
                       std::function<StatusOr<std::string>()> next,
                       const std::function<bool()>& given_up) override {
    asked_with.push_back(next);
    ++calls;
    if (hangs) {
      const auto patience = steady_clock::now() + milliseconds(20'000);
      while (!given_up() && steady_clock::now() < patience) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      return given_up() ? Cancelled("given up") : DeadlineExceeded("nobody gave up");
    }
    put.push_back(checkpoint);
    std::string& all = bytes.emplace_back();
    for (;;) {
      TITAN_ASSIGN_OR_RETURN(const std::string part, next());
      if (part.empty()) return fails;
      all += part;
    }
  }
  StatusOr<weightstore::StoredModel> FindCheckpoint(const std::string&) override {
    return NotFound("none");
  }

  bool hangs = false;
  std::atomic<int> calls = 0;
  Status fails;
  std::vector<weightstore::Checkpoint> put;
  std::vector<std::string> bytes;
  std::vector<std::function<StatusOr<std::string>()>> asked_with;
};

class CheckpointerTest : public ::testing::Test {
 protected:
  CheckpointerTest() {
    test::SmallModelOptions options;
    options.hidden_size = 16;
    options.intermediate_size = 32;
    options.vocab_size = 600;
    options.num_heads = 1;
    options.num_kv_heads = 1;
    options.head_dim = 16;
    const formats::ModelConfig config = test::SmallModelConfig(options);
    const auto table = model::ParameterTable::Of(config, model::Mode::kF32);
    EXPECT_TRUE(table.ok()) << table.status();
    manifest_ = CheckpointManifest(ManifestOf(*table, config), *table);
    auto state = trainer::TrainState::Create(pool_, table->slot_floats(), /*snapshots=*/true);
    EXPECT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    for (int64_t i = 0; i < state_->num_floats(); ++i) {
      state_->master()[i] = static_cast<float>(i % 89);
    }
  }
  void Make() {
    CheckpointerOptions options;
    options.run_id = "run";
    options.epoch = 3;
    options.manifest = manifest_;
    options.max_age = 2;
    options.on_done = [this](const CheckpointOutcome& outcome) { outcomes_.push_back(outcome); };
    checkpointer_ = std::make_unique<Checkpointer>(store_, clock_, std::move(options));
  }
  void Save(uint64_t version) {
    auto snapshot = state_->TakeSnapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    checkpointer_->Save(*std::move(snapshot), version, {1, version});
  }

  kernels::Pool pool_{1};
  SystemClock clock_;
  weightstore::Manifest manifest_;
  std::unique_ptr<trainer::TrainState> state_;
  PlayedStore store_;
  std::vector<CheckpointOutcome> outcomes_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(CheckpointerTest, SendsTheStateAndTheOldestVersionThatRecoveryNeeds) {
  Make();
  for (const uint64_t version : {1, 4}) {
    Save(version);
    checkpointer_->WaitUntilFree();
  }
  ASSERT_EQ(store_.put.size(), 2u);
  EXPECT_EQ(store_.put[0].needed_version, 0u);
  EXPECT_EQ(store_.put[1].needed_version, 2u);
  EXPECT_EQ(store_.put[1].epoch, 3u);
  const auto bytes = [](const float* array) { return reinterpret_cast<const std::byte*>(array); };
  EXPECT_EQ(store_.put[1].digest,
            CheckpointDigest(manifest_, {bytes(state_->master()), bytes(state_->first_moment()),
                                         bytes(state_->second_moment())}));
  uint64_t size = 0;
  for (const auto& tensor : manifest_.tensors) size += tensor.num_bytes;
  EXPECT_EQ(store_.bytes[1].size(), size);
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_TRUE(outcomes_[1].status.ok());
  EXPECT_EQ(outcomes_[1].version, 4u);
}

TEST_F(CheckpointerTest, ASnapshotMayBeTakenAsSoonAsTheOneBeforeIsWritten) {
  Make();
  for (uint64_t version = 1; version <= 3; ++version) {
    Save(version);  // although the store's client still has what it asks with
    checkpointer_->WaitUntilFree();
    EXPECT_EQ(store_.asked_with.back()().status().code(), StatusCode::kCancelled);
  }
}

TEST_F(CheckpointerTest, AFailureIsToldAndTheNextOneIsWritten) {
  Make();
  store_.fails = ResourceExhausted("the disk");
  Save(1);
  checkpointer_->WaitUntilFree();
  store_.fails = OkStatus();
  Save(2);
  checkpointer_->WaitUntilFree();
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_EQ(outcomes_[0].status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(outcomes_[1].status.ok());
}

TEST_F(CheckpointerTest, AStoreThatNeverAsksAndNeverAnswersIsGivenUp) {
  store_.hangs = true;
  Make();
  Save(1);
  while (store_.calls == 0) std::this_thread::sleep_for(milliseconds(1));
  const auto start = steady_clock::now();
  checkpointer_.reset();
  EXPECT_LT(steady_clock::now() - start, milliseconds(2000));
  EXPECT_TRUE(outcomes_.empty()) << "it is the run that ended";
}

}  // namespace
}  // namespace titan::services
