// SPDX-License-Identifier: Apache-2.0
// Goal: packs end only where units end, hold whole samples, and cover the shard; the units of all
// packs together are the units of the shard, whatever the row limit.
#include "trainer/packing.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace titan::trainer {
namespace {

std::vector<PackItem> Items(const std::vector<int64_t>& lengths) {
  std::vector<PackItem> items;
  for (const int64_t length : lengths) {
    items.push_back({static_cast<int64_t>(items.size()), 1, length, false});
  }
  return items;
}

TEST(PackingTest, PacksCoverTheShardAndKeepItsUnitsForEveryRowLimit) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> lengths(1 + random() % 60);
    for (int64_t& length : lengths) {
      length = 1 + static_cast<int64_t>(random() % (round % 3 == 0 ? 3000 : 90));
    }
    const auto units = kernels::ScanUnits(lengths);
    const int64_t max_rows = 4200 + static_cast<int64_t>(random() % 5000);
    const auto packs = PackShard(Items(lengths), max_rows);
    ASSERT_TRUE(packs.ok()) << packs.status();
    size_t sample = 0;
    size_t unit = 0;
    int64_t row = 0;
    for (const Pack& pack : *packs) {
      EXPECT_EQ(pack.first_item, static_cast<int64_t>(sample));
      EXPECT_LE(pack.num_rows, max_rows);
      int64_t rows = 0;
      for (int64_t i = 0; i < pack.num_items; ++i) rows += lengths[sample++];
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
  const auto packs = PackShard(Items(lengths), 2048);
  ASSERT_EQ(packs.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(packs.status()).find("2500"), std::string::npos);
  EXPECT_NE(MessageOf(packs.status()).find("2048"), std::string::npos);
}

TEST(PackingTest, GroupsShareTheirPromptWhenTheRuleSaysSo) {
  const auto sample = [](uint64_t group, size_t prompt, size_t reply, TokenId token = 1) {
    TrainingSample s;
    s.group = MakeGroupId(0, static_cast<uint32_t>(group), 0);
    s.prompt.assign(prompt, token);
    s.reply.assign(reply, 2);
    return s;
  };
  const std::vector<TrainingSample> samples = {
      sample(0, 10, 5), sample(0, 10, 7),                      // 22 rows: shared
      sample(1, 10, 5),                                        // alone
      sample(2, 10, 7), sample(2, 10, 6),                      // 23 rows: one too many
      sample(3, 4, 3),  sample(3, 4, 3, 9),                    // two prompts
      sample(4, 4, 6),  sample(4, 4, 6),    sample(4, 4, 6)};  // 22 rows: shared
  std::vector<const TrainingSample*> pointers;
  for (const TrainingSample& s : samples) pointers.push_back(&s);
  const std::vector<PackItem> expected = {{0, 2, 22, true},  {2, 1, 15, false}, {3, 1, 17, false},
                                          {4, 1, 16, false}, {5, 1, 7, false},  {6, 1, 7, false},
                                          {7, 3, 22, true}};
  EXPECT_EQ(ItemsOf(pointers, 22), expected);
  const std::vector<PackItem> separate = ItemsOf(pointers, 0);
  ASSERT_EQ(separate.size(), samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(separate[i], (PackItem{static_cast<int64_t>(i), 1, samples[i].length(), false}));
  }
}

}  // namespace
}  // namespace titan::trainer
