// SPDX-License-Identifier: Apache-2.0
// Goal: five updates by 1, 2, 3, 4 or 8 ranks, in threads or in processes of their own, with random
// packs, kernel threads and recomputation, leave the same weights and the same figures, bit for
// bit. Method: the real TrainRun on samples of the real engine; one rank alone is the expectation,
// and another number of shards must differ from it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "core/base/hash.h"
#include "tests/support/kernel_data.h"
#include "tests/support/rollout.h"
#include "tests/support/shared_memory_ranks.h"
#include "trainer/train_run.h"

namespace titan {
namespace {

using testing::SharedMemoryRanks;
using testing::SharedWindow;
using trainer::TrainConfig;
using trainer::TrainingSample;

constexpr int kSteps = 5;

// What every rank must end with.
struct Outcome {
  uint64_t weights = 0;
  double loss = 0.0;
  double ratio_max = 0.0;
  double gradient_norm = 0.0;
  uint64_t tokens_compared = 0;
  uint64_t tokens_differing = 0;

  bool operator==(const Outcome&) const = default;
};

struct Way {
  int ranks = 1;
  int shards = 8;
  std::vector<int64_t> pack_rows;  // of each rank
  std::vector<int> threads;
  std::vector<model::Recompute> recompute;
};

Way RandomWay(int ranks, testing::TestRandom& random) {
  Way way;
  way.ranks = ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    way.pack_rows.push_back(1151 + random.Below(3000));
    way.threads.push_back(static_cast<int>(1 + random.Below(3)));
    way.recompute.push_back(static_cast<model::Recompute>(random.Below(3)));
  }
  return way;
}

class LayoutFuzzTest : public ::testing::Test {
 protected:
  void SetUp() override {
    kernels::Pool pool(1);
    samples_ = testing::Rollout(model_, pool);
    const uint32_t num_groups = samples_.back().group_index + 1;
    const std::vector<TrainingSample> once = samples_;
    for (uint32_t i = 1; i < 5; ++i) {
      for (TrainingSample sample : once) {
        sample.group_index += i * num_groups;
        sample.id = SampleId{sample.id.value + i};
        samples_.push_back(std::move(sample));
      }
    }
  }

  Outcome Train(const Way& way, int rank, SharedWindow& window) {
    SharedMemoryRanks ranks(window, rank);
    const auto at = static_cast<size_t>(rank);
    kernels::Pool pool(way.threads[at]);
    TrainConfig config;
    config.num_shards = way.shards;
    config.max_pack_rows = way.pack_rows[at];
    config.recompute = way.recompute[at];
    auto run = testing::MakeRun(model_, pool, config, way.ranks == 1 ? nullptr : &ranks);
    Outcome outcome;
    for (int step = 0; step < kSteps; ++step) {
      const auto update = run->Update(samples_, samples_.back().group_index + 1, step == 0);
      if (!update.ok()) {
        ADD_FAILURE() << "rank " << rank << ": " << update.status();
        return {};
      }
      outcome.loss = update->loss;
      outcome.ratio_max = update->ratio_max;
      outcome.gradient_norm = update->gradient_norm;
      outcome.tokens_compared += update->parity.tokens_compared;
      outcome.tokens_differing += update->parity.tokens_differing;
    }
    std::vector<float> slot(static_cast<size_t>(model_.decoder->table().slot_floats()));
    EXPECT_TRUE(run->WriteSlot(slot.data()).ok());
    outcome.weights = Hash64(slot.data(), slot.size() * sizeof(float));
    return outcome;
  }

  std::vector<Outcome> InThreads(const Way& way) {
    SharedWindow window(way.ranks);
    std::vector<Outcome> outcomes(static_cast<size_t>(way.ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < way.ranks; ++rank) {
      threads.emplace_back(
          [&, rank] { outcomes[static_cast<size_t>(rank)] = Train(way, rank, window); });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  std::vector<Outcome> InProcesses(const Way& way) {
    SharedWindow window(way.ranks), results(1);
    auto* outcomes = reinterpret_cast<Outcome*>(results.bytes());
    std::vector<pid_t> children;
    for (int rank = 0; rank < way.ranks; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        outcomes[rank] = Train(way, rank, window);
        _exit(HasFailure() ? 1 : 0);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return {outcomes, outcomes + way.ranks};
  }

  testing::TinyModel model_ = testing::LoadTinyModel(testing::kRolloutModel);
  std::vector<TrainingSample> samples_;
};

TEST_F(LayoutFuzzTest, EveryNumberOfRanksLeavesTheSameBits) {
  testing::TestRandom random(31);
  Way alone = RandomWay(1, random);
  const Outcome expected = InProcesses(alone).front();
  EXPECT_NE(expected.weights, 0u);
  EXPECT_GT(expected.tokens_compared, 1000u);
  EXPECT_EQ(expected.tokens_differing, 0u);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const Way way = RandomWay(ranks, random);
    for (const Outcome& outcome : InProcesses(way)) EXPECT_EQ(outcome, expected) << ranks;
    const Way other = RandomWay(ranks, random);
    for (const Outcome& outcome : InThreads(other)) EXPECT_EQ(outcome, expected) << ranks;
  }
  alone.shards = 4;  // another contract
  EXPECT_NE(InThreads(alone).front().weights, expected.weights);
}

TEST_F(LayoutFuzzTest, MoreRanksThanShardsAreRefused) {
  SharedWindow window(4);
  SharedMemoryRanks ranks(window, 0);
  kernels::Pool pool(1);
  TrainConfig config;
  config.num_shards = 2;
  config.shared_group_tokens = 0;
  const auto run = trainer::TrainRun::Create(
      *model_.decoder, pool, config, [] { return 0.0; }, &ranks);
  ASSERT_EQ(run.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(run.status()).find("training.shards"), std::string::npos);
}

}  // namespace
}  // namespace titan
