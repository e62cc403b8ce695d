// SPDX-License-Identifier: Apache-2.0
// Goal: packs end only where units end, hold whole samples, and cover the shard; the units of all
// packs together are the units of the shard, whatever the row limit.
#include "trainer/packing.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace titan::trainer {
namespace {

TEST(PackingTest, PacksCoverTheShardAndKeepItsUnitsForEveryRowLimit) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> lengths(1 + random() % 60);
    for (int64_t& length : lengths) {
      length = 1 + static_cast<int64_t>(random() % (round % 3 == 0 ? 3000 : 90));
    }
    const auto units = kernels::ScanUnits(lengths);
    const int64_t max_rows = 4200 + static_cast<int64_t>(random() % 5000);
    const auto packs = PackShard(lengths, max_rows);
    ASSERT_TRUE(packs.ok()) << packs.status();
    size_t sample = 0;
    size_t unit = 0;
    int64_t row = 0;
    for (const Pack& pack : *packs) {
      EXPECT_EQ(pack.first_sample, static_cast<int64_t>(sample));
      EXPECT_LE(pack.num_rows, max_rows);
      int64_t rows = 0;
      for (int64_t i = 0; i < pack.num_samples; ++i) rows += lengths[sample++];
      EXPECT_EQ(rows, pack.num_rows);
      for (const kernels::RowRange& range : pack.units) {
        ASSERT_LT(unit, units.size());
        EXPECT_EQ(range.begin + row, units[unit].first_row);
        EXPECT_EQ(range.end - range.begin, units[unit].num_rows);
        ++unit;
      }
      ASSERT_GT(unit, 0u);
      EXPECT_TRUE(units[unit - 1].ends_sample);
      row += pack.num_rows;
    }
    EXPECT_EQ(sample, lengths.size());
    EXPECT_EQ(unit, units.size());
  }
}

TEST(PackingTest, RefusesAStretchThatDoesNotFitNamingBothNumbers) {
  const std::vector<int64_t> lengths = {1000, 1500};
  const auto packs = PackShard(lengths, 2048);
  ASSERT_EQ(packs.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(packs.status()).find("2500"), std::string::npos);
  EXPECT_NE(MessageOf(packs.status()).find("2048"), std::string::npos);
}

}  // namespace
}  // namespace titan::trainer
