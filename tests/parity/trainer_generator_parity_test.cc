// SPDX-License-Identifier: Apache-2.0
// Goal: the trainer's own training forward gives the generator's log-probs bit for bit, and an
// update is a function of (samples, weights) alone: not of packs, threads or instruction set.
// Method: samples made by the real engine in mixed batches, compared and trained by the real
// TrainRun; what must fail is shown to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "core/base/hash.h"
#include "core/kernels/isa.h"
#include "tests/support/rollout.h"
#include "tests/support/tiny_model.h"
#include "trainer/train_run.h"

namespace titan {
namespace {

using testing::MakeRun;
using trainer::TrainConfig;
using trainer::TrainingSample;
using trainer::TrainRun;
using trainer::UpdateResult;

uint64_t SlotHash(const testing::TinyModel& model, TrainRun& run) {
  std::vector<float> slot(static_cast<size_t>(model.decoder->table().slot_floats()));
  EXPECT_TRUE(run.WriteSlot(slot.data()).ok());
  return Hash64(slot.data(), slot.size() * sizeof(float));
}

class ParityTest : public ::testing::Test {
 protected:
  testing::TinyModel model_ = testing::LoadTinyModel(testing::kRolloutModel);
  kernels::Pool pool_{2};
  std::vector<TrainingSample> samples_ = testing::Rollout(model_, pool_);
};

TEST_F(ParityTest, TrainingForwardGivesTheRolloutsBits) {
  auto run = MakeRun(model_, pool_, {});
  const auto result = run->Compare(model_.slot.get(), samples_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->tokens_compared, 200u);
  EXPECT_EQ(result->tokens_differing, 0u);
  EXPECT_EQ(result->difference_max, 0.0);
  EXPECT_GE(result->samples_per_pack_min, 4u);
}

TEST_F(ParityTest, OneChangedBitOfOneWeightOrLogProbIsSeen) {
  auto run = MakeRun(model_, pool_, {});
  auto changed = samples_;
  uint32_t bits = std::bit_cast<uint32_t>(changed[3].log_probs[0]);
  changed[3].log_probs[0] = std::bit_cast<float>(bits ^ 1u);
  auto result = run->Compare(model_.slot.get(), changed);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens_differing, 1u);
  ASSERT_EQ(result->differences.size(), 1u);
  EXPECT_EQ(result->differences[0].sample, changed[3].id);
  EXPECT_EQ(result->differences[0].token_index, 0u);

  const auto& norm = model_.decoder->table().at(model_.decoder->table().final_norm());
  float& weight = model_.slot[static_cast<size_t>(norm.offset / 4)];
  weight = std::bit_cast<float>(std::bit_cast<uint32_t>(weight) ^ 1u);
  result = run->Compare(model_.slot.get(), samples_);
  ASSERT_TRUE(result.ok());
  EXPECT_GT(result->tokens_differing, 0u);
}

TEST_F(ParityTest, OnPolicyUpdateComparesEveryTrainedToken) {
  auto run = MakeRun(model_, pool_, {});
  const auto update = run->Update(samples_, 4, /*compare=*/true);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_EQ(update->parity.tokens_compared, static_cast<uint64_t>(update->tokens_trained));
  EXPECT_EQ(update->parity.tokens_differing, 0u);
  EXPECT_EQ(update->ratio_max, 1.0);
  EXPECT_GT(update->gradient_norm, 0.0);
  // After the step the policy is another one: its log-probs must differ.
  std::vector<float> slot(static_cast<size_t>(model_.decoder->table().slot_floats()));
  ASSERT_TRUE(run->WriteSlot(slot.data()).ok());
  const auto after = run->Compare(slot.data(), samples_);
  ASSERT_TRUE(after.ok());
  EXPECT_GT(after->tokens_differing, after->tokens_compared / 2);
}

TEST_F(ParityTest, UpdateDependsOnSamplesAloneForEveryNumberOfShards) {
  const auto samples = testing::Drawn(samples_, 16);
  const auto num_groups = static_cast<int64_t>(samples.back().group_index) + 1;
  int64_t num_tokens = 0;
  for (const TrainingSample& sample : samples) num_tokens += sample.length();
  ASSERT_GT(num_tokens, 5000);  // at least three units, so several chains even in one shard
  std::map<int, uint64_t> expected;
  struct Way {
    int threads;
    int64_t pack_rows;
    const char* isa;
  };
  const Way ways[] = {
      {1, 1151, "auto"}, {2, 2300, "avx2"}, {3, 16384, "auto"}, {2, 1200, "avx512"}};
  for (const int shards : {1, 2, 4}) {
    std::set<uint32_t> compositions;
    for (const Way& way : ways) {
      if (!kernels::SetIsa(way.isa).ok()) continue;  // reported by the kernels' own tests
      kernels::Pool pool(way.threads);
      TrainConfig config;
      config.num_shards = shards;
      config.max_pack_rows = way.pack_rows;
      auto run = MakeRun(model_, pool, config);
      const auto first = run->Update(samples, num_groups, true);
      ASSERT_TRUE(first.ok()) << first.status();
      EXPECT_EQ(first->parity.tokens_differing, 0u);
      EXPECT_GE(first->parity.samples_per_pack_min, 1u);
      const auto whole_shard = static_cast<uint32_t>(samples.size()) / shards;
      if (way.pack_rows == 16384) {
        EXPECT_EQ(first->parity.samples_per_pack_min, whole_shard);
      } else if (way.pack_rows <= 1200) {
        EXPECT_LT(first->parity.samples_per_pack_min, whole_shard);
      }
      compositions.insert(first->parity.samples_per_pack_min);
      ASSERT_TRUE(run->Update(samples, num_groups, false).ok());
      const uint64_t hash = SlotHash(model_, *run);
      const auto [it, fresh] = expected.emplace(shards, hash);
      EXPECT_EQ(it->second, hash) << shards << " shards, " << way.threads << " threads, "
                                  << way.pack_rows << " rows, " << way.isa;
    }
    EXPECT_GE(compositions.size(), 2u);
  }
  ASSERT_TRUE(kernels::SetIsa("auto").ok());
  EXPECT_NE(expected[1], expected[4]);  // Z is part of the contract, not a free choice
}

TEST_F(ParityTest, SharingThePromptKeepsTheLogProbsAndIsAnotherOrder) {
  const auto samples = testing::Drawn(samples_, 16);
  const auto num_groups = static_cast<int64_t>(samples.back().group_index) + 1;
  std::map<int64_t, UpdateResult> updates;
  std::map<int64_t, uint64_t> hashes;
  for (const int64_t shared_group_tokens : {0, 128}) {
    TrainConfig config;
    config.shared_group_tokens = shared_group_tokens;
    auto run = MakeRun(model_, pool_, config);
    const auto update = run->Update(samples, num_groups, /*compare=*/true);
    ASSERT_TRUE(update.ok()) << update.status();
    EXPECT_EQ(update->parity.tokens_compared, static_cast<uint64_t>(update->tokens_trained));
    EXPECT_EQ(update->parity.tokens_differing, 0u);
    EXPECT_EQ(update->parity.difference_max, 0.0);
    updates[shared_group_tokens] = *update;
    hashes[shared_group_tokens] = SlotHash(model_, *run);
  }
  // Every trained token's log-prob has the same bits, so the loss has; the gradient's sums do not.
  EXPECT_EQ(updates[0].log_prob_digest, updates[128].log_prob_digest);
  EXPECT_EQ(updates[0].loss, updates[128].loss);
  EXPECT_NE(hashes[0], hashes[128]);
  EXPECT_NEAR(updates[128].gradient_norm / updates[0].gradient_norm, 1.0, 1e-6);
  std::vector<const TrainingSample*> pointers;
  for (const TrainingSample& sample : samples) pointers.push_back(&sample);
  const auto items = trainer::ItemsOf(pointers, 128);
  const auto shared = std::count_if(items.begin(), items.end(),
                                    [](const auto& item) { return item.shares_prompt; });
  EXPECT_GE(shared, 6);
  EXPECT_LT(shared, num_groups);  // groups of both kinds
}

TEST_F(ParityTest, AStepWithoutTrainedSamplesChangesNothing) {
  auto run = MakeRun(model_, pool_, {});
  const uint64_t before = SlotHash(model_, *run);
  auto untrained = samples_;
  for (auto& sample : untrained) sample.trained = false;
  const auto update = run->Update(untrained, 0, false);
  ASSERT_TRUE(update.ok());
  EXPECT_FALSE(update->updated);
  EXPECT_EQ(SlotHash(model_, *run), before);
}

TEST_F(ParityTest, RefusesSamplesItCannotTrainNamesThemAndStaysWhole) {
  auto run = MakeRun(model_, pool_, {});
  const uint64_t before = SlotHash(model_, *run);
  struct Case {
    const char* what;
    std::function<void(TrainingSample&)> change;  // of the last sample: all before it are good
    StatusCode code;
    const char* message;
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto vocabulary = static_cast<TokenId>(model_.decoder->vocabulary());
  const Case cases[] = {
      {"length", [](auto& s) { s.log_probs.pop_back(); }, StatusCode::kInvalidArgument, "logprobs"},
      {"too long", [](auto& s) { s.prompt.resize(500, 1); }, StatusCode::kInvalidArgument,
       "max_sequence_tokens"},
      {"group", [](auto& s) { s.group_index = 4; }, StatusCode::kInvalidArgument, "group_index 4"},
      {"order", [](auto& s) { s.sample_index = 2; }, StatusCode::kInvalidArgument, "plan order"},
      {"group order", [](auto& s) { s.group_index = 2; }, StatusCode::kInvalidArgument,
       "plan order"},
      {"prompt below", [](auto& s) { s.prompt[5] = -1; }, StatusCode::kInvalidArgument,
       "prompt_token_ids[5] = -1"},
      {"prompt above", [&](auto& s) { s.prompt[0] = vocabulary; }, StatusCode::kInvalidArgument,
       "prompt_token_ids[0] = 256"},
      // The last token of a reply enters no row of the forward, only its target.
      {"reply", [&](auto& s) { s.reply.back() = vocabulary; }, StatusCode::kInvalidArgument,
       "= 256"},
      {"nan", [](auto& s) { s.log_probs[0] = kNan; }, StatusCode::kInvalidArgument, "logprobs[0]"},
      {"infinity", [](auto& s) { s.log_probs[0] = -kInfinity; }, StatusCode::kInvalidArgument,
       "logprobs[0]"},
      {"advantage", [](auto& s) { s.advantage = kNan; }, StatusCode::kDataLoss, "advantage"},
      {"advantage", [](auto& s) { s.advantage = kInfinity; }, StatusCode::kDataLoss, "advantage"},
  };
  for (const Case& c : cases) {
    auto bad = samples_;
    c.change(bad.back());
    const Status status = run->Update(bad, 4, false).status();
    EXPECT_EQ(status.code(), c.code) << c.what << ": " << status;
    EXPECT_THAT(status.ToString(), ::testing::HasSubstr(c.message)) << c.what;
    EXPECT_THAT(status.ToString(), ::testing::HasSubstr(ToHex(bad.back().id.value))) << c.what;
    EXPECT_EQ(SlotHash(model_, *run), before) << c.what;
  }
  // What is only compared is checked as well, without an order of its own.
  auto bad = samples_;
  std::swap(bad[0], bad[1]);
  EXPECT_TRUE(run->Compare(model_.slot.get(), bad).ok());
  bad[2].log_probs[0] = kNan;
  EXPECT_EQ(run->Compare(model_.slot.get(), bad).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ParityTest, ALossThatIsNoNumberEndsTheStep) {
  // The ratio's clamp gives a NaN log-prob the derivative 0: without the check on the loss nothing
  // but the weight itself would tell.
  auto run = MakeRun(model_, pool_, {});
  run->master()[0] = std::numeric_limits<float>::infinity();
  const Status status = run->Update(samples_, 4, false).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.ToString(), ::testing::HasSubstr("the loss is"));
}

TEST_F(ParityTest, AnUpdateThatEndedEarlyLeavesNothingBehind) {
  const auto samples = testing::Drawn(samples_, 4);
  const int64_t num_groups = 16;
  TrainConfig config;
  config.aggregation = trainer::Aggregation::kTokenSum;
  config.max_pack_rows = 1151;
  auto untouched = MakeRun(model_, pool_, config);
  ASSERT_TRUE(untouched->Update(samples, num_groups, false).ok());
  auto run = MakeRun(model_, pool_, config);
  auto bad = samples;
  bad.back().advantage = 1e308;  // finite, but the sum over the reply is not
  ASSERT_GT(bad.back().reply.size(), 1u);
  const Status status = run->Update(bad, num_groups, false).status();
  ASSERT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.ToString(), ::testing::HasSubstr(ToHex(bad.back().id.value)));
  ASSERT_TRUE(run->Update(samples, num_groups, false).ok());
  EXPECT_EQ(SlotHash(model_, *run), SlotHash(model_, *untouched));
}

}  // namespace
}  // namespace titan
