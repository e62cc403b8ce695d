// SPDX-License-Identifier: Apache-2.0
// Goal: the digests of a tensor group's parts add up to that of the whole gradient, and one bit or
// the place of a panel changes it. Method: random gradients in whole and in parts of one model.
#include "trainer/gradient_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "core/formats/model_config.h"
#include "tests/support/kernel_data.h"

namespace titan::trainer {
namespace {

class GradientDigestTest : public ::testing::Test {
 protected:
  // Two chunks of the vocabulary, the second of one token: not every rank has rows of every matrix.
  static model::ParameterTable Table(model::TensorShard shard) {
    formats::ModelConfig config;
    config.family = "llama";
    config.hidden_size = 64;
    config.intermediate_size = 96;
    config.num_layers = 1;
    config.num_heads = 2;
    config.num_kv_heads = 1;
    config.head_dim = 32;
    config.vocab_size = 1025;
    config.max_position_embeddings = 128;
    config.rms_norm_eps = 1e-5f;
    config.rope_theta = 10000;
    config.qkv_bias = config.o_bias = config.mlp_bias = true;
    auto table = model::ParameterTable::Of(config, model::Mode::kF32, shard);
    EXPECT_TRUE(table.ok()) << table.status();
    return *std::move(table);
  }

  kernels::Pool pool_{2};
  const model::ParameterTable whole_ = Table({0, 1});
  std::vector<float> gradient_ = testing::UniformFloats(whole_.slot_floats(), 5);
};

TEST_F(GradientDigestTest, PartsAddUpToTheWhole) {
  const Hash128 expected = GradientDigest(pool_, whole_, gradient_.data());
  for (const int size : {2, 3, 4}) {
    Hash128 sum;
    for (int rank = 0; rank < size; ++rank) {
      const model::ParameterTable part = Table({rank, size});
      std::vector<float> held(static_cast<size_t>(part.slot_floats()));
      for (int i = 0; i < part.size(); ++i) {
        const model::Parameter &from = whole_.at(i), &to = part.at(i);
        const int64_t first = to.is_matrix() ? to.held.begin * to.columns() : 0;
        std::copy_n(gradient_.begin() + from.offset / 4 + first, to.num_floats(),
                    held.begin() + to.offset / 4);
      }
      kernels::Pool pool(1 + rank);
      sum += GradientDigest(pool, part, held.data());
    }
    EXPECT_EQ(ToHex(sum), ToHex(expected)) << size << " ranks";
  }
}

TEST_F(GradientDigestTest, OneBitOrThePlaceOfAPanelChangesIt) {
  const Hash128 expected = GradientDigest(pool_, whole_, gradient_.data());
  testing::TestRandom random(6);
  for (int i = 0; i < whole_.size(); ++i) {
    const model::Parameter& p = whole_.at(i);
    const auto at = static_cast<size_t>(p.offset / 4 + random.Below(p.num_floats()));
    const float before = gradient_[at];
    gradient_[at] = std::bit_cast<float>(std::bit_cast<uint32_t>(before) ^ 1u);
    EXPECT_NE(GradientDigest(pool_, whole_, gradient_.data()), expected) << p.name;
    gradient_[at] = before;
    if (!p.is_matrix()) continue;
    const auto panels = gradient_.begin() + p.offset / 4;
    const int64_t panel = p.columns() * kernels::kPanelColumns;
    if (p.num_floats() < 2 * panel) continue;
    std::swap_ranges(panels, panels + panel, panels + panel);
    EXPECT_NE(GradientDigest(pool_, whole_, gradient_.data()), expected) << p.name;
    std::swap_ranges(panels, panels + panel, panels + panel);
  }
  EXPECT_EQ(GradientDigest(pool_, whole_, gradient_.data()), expected);
}

}  // namespace
}  // namespace titan::trainer
