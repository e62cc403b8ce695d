// SPDX-License-Identifier: Apache-2.0
// Goal: the trainer's own training forward gives the generator's log-probs bit for bit, and an
// update is a function of (samples, weights) alone: not of packs, threads or instruction set.
// Method: samples made by the real engine in mixed batches, compared and trained by the real
// TrainRun; what must fail is shown to.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "core/base/hash.h"
#include "core/kernels/isa.h"
#include "generator/engine.h"
#include "tests/support/tiny_model.h"
#include "trainer/train_run.h"

namespace titan {
namespace {

using trainer::TrainConfig;
using trainer::TrainingSample;
using trainer::TrainRun;

constexpr char kModel[] = "llama_llama3rope_tied";

// Four groups of four; prompts share pages inside a group; at least 8 sequences run at once.
std::vector<TrainingSample> Rollout(const testing::TinyModel& model, kernels::Pool& pool) {
  generator::Engine::Limits limits;
  limits.max_running = 12;
  limits.max_batch_rows = 40;
  auto engine = *generator::Engine::Create(*model.decoder, pool, limits);
  const generator::VersionKey version{"run", 0, false};
  EXPECT_TRUE(engine->AddVersion(version, model.slot.get(), [] { return true; }).ok());
  std::map<uint64_t, generator::GroupRequest> requests;
  for (uint32_t g = 0; g < 4; ++g) {
    generator::GroupRequest request;
    request.version = version;
    request.group = MakeGroupId(0, g, 0);
    request.seed = 5;
    for (uint32_t i = 0; i < 20 + 13 * g; ++i) {
      request.prompt.push_back(static_cast<TokenId>((i * 7 + g) % model.decoder->vocabulary()));
    }
    for (uint32_t s = 0; s < 4; ++s) request.samples.push_back({s, MakeSampleId(request.group, s)});
    request.max_new_tokens = 24;
    request.stop_tokens = {3};
    const auto id = engine->Submit(request);
    EXPECT_TRUE(id.ok());
    requests[*id] = request;
  }
  std::vector<TrainingSample> samples;
  while (engine->HasWork()) {
    for (const auto& result : engine->Step().finished) {
      const auto& request = requests.at(result.request);
      TrainingSample sample;
      sample.group = request.group;
      sample.group_index = SlotOf(request.group);
      sample.sample_index = result.sample_index;
      sample.id = MakeSampleId(request.group, result.sample_index);
      sample.prompt = request.prompt;
      sample.reply = result.tokens;
      sample.log_probs = result.log_probs;
      sample.advantage = result.sample_index % 2 == 0 ? 1.0 : -1.0;
      sample.trained = true;
      sample.compared = true;
      samples.push_back(std::move(sample));
    }
  }
  EXPECT_GE(engine->sequences_running_max(), 8);
  std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) {
    return std::pair(a.group_index, a.sample_index) < std::pair(b.group_index, b.sample_index);
  });
  return samples;
}

std::unique_ptr<TrainRun> MakeRun(const testing::TinyModel& model, kernels::Pool& pool,
                                  TrainConfig config) {
  config.optimizer.lr = 1e-3;
  config.max_sequence_tokens = 128;
  auto run = TrainRun::Create(*model.decoder, pool, config, [] { return 0.0; });
  EXPECT_TRUE(run.ok()) << run.status();
  std::memcpy((*run)->master(), model.slot.get(),
              static_cast<size_t>(model.decoder->table().slot_bytes()));
  return *std::move(run);
}

uint64_t SlotHash(const testing::TinyModel& model, TrainRun& run) {
  std::vector<float> slot(static_cast<size_t>(model.decoder->table().slot_floats()));
  run.WriteSlot(slot.data());
  return Hash64(slot.data(), slot.size() * sizeof(float));
}

class ParityTest : public ::testing::Test {
 protected:
  testing::TinyModel model_ = testing::LoadTinyModel(kModel);
  kernels::Pool pool_{2};
  std::vector<TrainingSample> samples_ = Rollout(model_, pool_);
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
  run->WriteSlot(slot.data());
  const auto after = run->Compare(slot.data(), samples_);
  ASSERT_TRUE(after.ok());
  EXPECT_GT(after->tokens_differing, after->tokens_compared / 2);
}

TEST_F(ParityTest, UpdateDependsOnSamplesAloneForEveryNumberOfShards) {
  std::map<int, uint64_t> expected;
  struct Way {
    int threads;
    int64_t pack_rows;
    kernels::Isa isa;
  };
  const Way ways[] = {{1, 1151, kernels::Isa::kAvx512},
                      {2, 1400, kernels::Isa::kAvx2},
                      {3, 4096, kernels::Isa::kAvx512},
                      {2, 1200, kernels::Isa::kAvx512}};
  const kernels::Isa before = kernels::CurrentIsa();
  for (const int shards : {1, 2, 4}) {
    for (const Way& way : ways) {
      if (!kernels::SetIsa(way.isa).ok()) continue;  // reported by the kernels' own tests
      kernels::Pool pool(way.threads);
      TrainConfig config;
      config.num_shards = shards;
      config.max_pack_rows = way.pack_rows;
      auto run = MakeRun(model_, pool, config);
      ASSERT_TRUE(run->Update(samples_, 4, false).ok());
      ASSERT_TRUE(run->Update(samples_, 4, false).ok());
      const uint64_t hash = SlotHash(model_, *run);
      const auto [it, fresh] = expected.emplace(shards, hash);
      EXPECT_EQ(it->second, hash) << shards << " shards, " << way.threads << " threads, "
                                  << way.pack_rows << " rows, " << kernels::IsaName(way.isa);
    }
  }
  ASSERT_TRUE(kernels::SetIsa(before).ok());
  EXPECT_NE(expected[1], expected[4]);  // Z is part of the contract, not a free choice
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

TEST_F(ParityTest, RefusesSamplesItCannotTrain) {
  auto run = MakeRun(model_, pool_, {});
  auto bad = samples_;
  bad[0].log_probs.pop_back();
  EXPECT_EQ(run->Update(bad, 4, false).status().code(), StatusCode::kInvalidArgument);
  bad = samples_;
  bad[0].prompt.resize(500, 1);
  EXPECT_EQ(run->Update(bad, 4, false).status().code(), StatusCode::kInvalidArgument);
  bad = samples_;
  bad[0].group_index = 4;
  EXPECT_EQ(run->Update(bad, 4, false).status().code(), StatusCode::kInvalidArgument);
  bad = samples_;
  bad[0].advantage = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(run->Update(bad, 4, false).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan
