// SPDX-License-Identifier: Apache-2.0
// Goal: in modes W16 and BF16 the trainer compares and trains with exactly the bytes that it
// publishes, those give the generator's log-probs bit for bit, and the f32 master takes the
// gradient unchanged.
// Method: samples made by the real engine on the bfloat16 slot, the real TrainRun; what must fail
// is shown to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "core/base/hash.h"
#include "core/kernels/bf16.h"
#include "core/kernels/isa.h"
#include "core/kernels/panels.h"
#include "tests/support/rollout.h"
#include "tests/support/tiny_model.h"
#include "trainer/train_run.h"

namespace titan {
namespace {

using kernels::BFloat16;
using testing::MakeRun;
using trainer::TrainConfig;
using trainer::TrainingSample;
using trainer::TrainRun;

class RoundedParityTest : public ::testing::TestWithParam<model::Mode> {
 protected:
  std::vector<float> Published(TrainRun& run) const {
    std::vector<float> slot(static_cast<size_t>(model_.decoder->table().slot_floats()), 7.0f);
    const Status written = run.WriteSlot(slot.data());
    EXPECT_TRUE(written.ok()) << written;
    return slot;
  }

  testing::TinyModel model_ = testing::LoadTinyModel(testing::kRolloutModel, GetParam());
  kernels::Pool pool_{2};
  std::vector<TrainingSample> samples_ = testing::Rollout(model_, pool_);
};
class W16ParityTest : public RoundedParityTest {};

INSTANTIATE_TEST_SUITE_P(Mode, RoundedParityTest,
                         ::testing::Values(model::Mode::kW16, model::Mode::kBf16),
                         [](const auto& info) { return std::string(ModeName(info.param)); });
INSTANTIATE_TEST_SUITE_P(Mode, W16ParityTest, ::testing::Values(model::Mode::kW16),
                         [](const auto& info) { return std::string(ModeName(info.param)); });

TEST_P(RoundedParityTest, TrainingForwardGivesTheRolloutsBitsAndOneChangedBitIsSeen) {
  auto run = MakeRun(model_, pool_, {});
  // Version 0 is what a generator would have loaded itself.
  const std::vector<float> slot = Published(*run);
  EXPECT_EQ(std::memcmp(slot.data(), model_.slot.get(),
                        static_cast<size_t>(model_.decoder->table().slot_bytes())),
            0);
  auto result = run->Compare(slot.data(), samples_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->tokens_compared, 200u);
  EXPECT_EQ(result->tokens_differing, 0u);
  EXPECT_EQ(result->difference_max, 0.0);
  EXPECT_GE(result->samples_per_pack_min, 4u);

  const auto& up = model_.decoder->table().at(model_.decoder->table().layers()[0].up);
  auto* bytes = reinterpret_cast<char*>(model_.slot.get()) + up.offset;
  bytes[2 * kernels::Bf16PanelIndex(up.columns(), 3, 4)] ^= 1;
  result = run->Compare(model_.slot.get(), samples_);
  ASSERT_TRUE(result.ok());
  EXPECT_GT(result->tokens_differing, 0u);
}

TEST_P(RoundedParityTest, AnUpdateTrainsOnWhatWasPublishedAndPublishesTheRoundedMaster) {
  auto run = MakeRun(model_, pool_, {});
  const std::vector<float> before = Published(*run);
  const auto update = run->Update(samples_, 4, /*compare=*/true);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_EQ(update->parity.tokens_compared, static_cast<uint64_t>(update->tokens_trained));
  EXPECT_EQ(update->parity.tokens_differing, 0u);
  EXPECT_EQ(update->ratio_max, 1.0);
  const std::vector<float> slot = Published(*run);
  EXPECT_NE(std::memcmp(slot.data(), before.data(), slot.size() * sizeof(float)), 0);

  // Element by element, by the table's own definition of places.
  const float* master = run->master();
  int64_t matrix_elements = 0, kept_bits = 0;
  for (int i = 0; i < model_.decoder->table().size(); ++i) {
    const model::Parameter& p = model_.decoder->table().at(i);
    const model::Parameter& m = model_.decoder->master_table().at(i);
    const char* bytes = reinterpret_cast<const char*>(slot.data()) + p.offset;
    const float* values = master + m.offset / 4;
    if (!p.is_matrix()) {
      EXPECT_EQ(std::memcmp(bytes, values, static_cast<size_t>(p.bytes)), 0) << p.name;
      continue;
    }
    for (int64_t row = 0; row < p.rows(); ++row) {
      for (int64_t column = 0; column < p.columns(); ++column) {
        const float value = values[kernels::PanelIndex(p.columns(), row, column)];
        BFloat16 published;
        std::memcpy(&published, bytes + 2 * kernels::Bf16PanelIndex(p.columns(), row, column), 2);
        ASSERT_EQ(published, kernels::RoundToBf16(value)) << p.name << " " << row << " " << column;
        ++matrix_elements;
        kept_bits += (std::bit_cast<uint32_t>(value) & 0xffffu) != 0;
      }
    }
  }
  // The master keeps what the rounding leaves out.
  EXPECT_GT(kept_bits, matrix_elements / 2);
}

// Straight through: the gradient is that of an F32 run on the upconverted weights.
TEST_P(W16ParityTest, TheGradientIsThatOfF32OnThePublishedWeights) {
  testing::TinyModel f32 = testing::LoadTinyModel(testing::kRolloutModel);
  for (int i = 0; i < f32.decoder->table().size(); ++i) {
    const model::Parameter& p = f32.decoder->table().at(i);
    std::vector<float> values(static_cast<size_t>(p.num_elements()));
    model::ReadParameter(pool_, model_.decoder->table().at(i), model_.slot.get(), values);
    ASSERT_TRUE(model::StoreParameter(pool_, p, values, f32.slot.get()).ok());
    ASSERT_TRUE(model::StoreParameter(pool_, p, values, f32.master.get()).ok());
  }
  auto rounded = MakeRun(f32, pool_, {});
  auto run = MakeRun(model_, pool_, {});
  const auto expected = rounded->Update(samples_, 4, true);
  const auto update = run->Update(samples_, 4, true);
  ASSERT_TRUE(expected.ok() && update.ok()) << expected.status() << update.status();
  EXPECT_EQ(expected->parity.tokens_differing, 0u);
  EXPECT_EQ(update->loss, expected->loss);
  EXPECT_EQ(update->gradient_norm, expected->gradient_norm);
  EXPECT_GT(update->gradient_norm, 0.0);
}

TEST_P(RoundedParityTest, UpdatesDependOnSamplesAlone) {
  constexpr int kShards = 2;
  const auto samples = testing::Drawn(samples_, 16);
  const int64_t num_groups = samples.back().group_index + 1;
  struct Way {
    int threads;
    int64_t pack_rows;
    model::Recompute recompute;
    const char* isa;
  };
  std::set<uint64_t> log_probs, weights;
  std::set<std::string> gradients;
  std::set<std::vector<testing::ShardPacks>> compositions;
  int ways = 0;
  for (const Way& way : {Way{1, 1151, model::Recompute::kFull, "auto"},
                         Way{3, 4096, model::Recompute::kNone, "avx2"},
                         Way{2, 2300, model::Recompute::kSelective, "avx512"}}) {
    if (!kernels::SetIsa(way.isa).ok()) continue;  // reported by the kernels' own tests
    ++ways;
    kernels::Pool pool(way.threads);
    TrainConfig config;
    config.num_shards = kShards;
    config.max_pack_rows = way.pack_rows;
    config.shared_group_tokens = 128;
    config.recompute = way.recompute;
    config.digest_gradient = true;
    const auto packs =
        testing::PacksOf(samples, std::vector(kShards, way.pack_rows), config.shared_group_tokens);
    for (const testing::ShardPacks& shard : packs) EXPECT_GE(shard.num_units, 3u);
    compositions.insert(packs);
    auto run = MakeRun(model_, pool, config);
    // Of the second step: its weights are what the first one left.
    trainer::UpdateResult last;
    for (int step = 0; step < 2; ++step) {
      const auto update = run->Update(samples, num_groups, step == 0);
      ASSERT_TRUE(update.ok()) << update.status();
      EXPECT_EQ(update->parity.tokens_differing, 0u);
      if (step == 0) {
        EXPECT_EQ(update->parity.samples_per_pack_min, testing::SamplesPerPackMin(packs));
      }
      last = *update;
    }
    log_probs.insert(last.log_prob_digest);
    gradients.insert(ToHex(last.gradient_digest));
    const std::vector<float> slot = Published(*run);
    weights.insert(Hash64(slot.data(), slot.size() * sizeof(float)));
  }
  ASSERT_TRUE(kernels::SetIsa("auto").ok());
  EXPECT_EQ(compositions.size(), static_cast<size_t>(ways));  // no two ways cut alike
  EXPECT_EQ(log_probs.size(), 1u);
  EXPECT_EQ(gradients.size(), 1u);
  EXPECT_EQ(weights.size(), 1u);
}

TEST_P(RoundedParityTest, AWeightThatIsNotFiniteInBfloat16IsNotPublished) {
  auto run = MakeRun(model_, pool_, {});
  const auto& master = model_.decoder->master_table();
  const auto& down = master.at(master.layers()[0].down);
  run->master()[down.offset / 4] = std::numeric_limits<float>::max();  // finite as f32
  std::vector<float> slot(static_cast<size_t>(model_.decoder->table().slot_floats()));
  const Status refused = run->WriteSlot(slot.data());
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_THAT(refused.ToString(), ::testing::HasSubstr(down.name));
  EXPECT_EQ(run->Update(samples_, 4, true).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan
