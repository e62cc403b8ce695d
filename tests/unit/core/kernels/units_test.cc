// SPDX-License-Identifier: Apache-2.0
//
// Units against a scan that walks token by token as the rule is written, their promises, and
// shards.
#include "core/kernels/units.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

// The rule word by word: one token at a time.
std::vector<Unit> SlowScan(const std::vector<int64_t>& lengths) {
  std::vector<Unit> units;
  int64_t row = 0, first = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int64_t t = 1; t <= lengths[s]; ++t) {
      ++row;
      const bool last_token = t == lengths[s];
      const bool a = last_token && (row - first >= 1024 || lengths[s] > 1024);
      const bool b = t % 1024 == 0 && !last_token;
      const bool c = last_token && s + 1 == lengths.size();
      if (a || b || c) {
        units.push_back({first, row - first, a || c});
        first = row;
      }
    }
  }
  return units;
}

TEST(UnitsTest, EqualTheRuleAppliedTokenByToken) {
  tests::Random random(21);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> lengths;
    const int64_t longest = round % 3 == 0 ? 5000 : round % 3 == 1 ? 300 : 1100;
    for (int64_t i = random.Between(1, 30); i > 0; --i)
      lengths.push_back(random.Between(1, longest));
    const std::vector<Unit> units = ScanUnits(lengths);
    ASSERT_EQ(units, SlowScan(lengths));
    int64_t next = 0;
    for (const Unit& unit : units) {
      EXPECT_EQ(unit.first_row, next);
      EXPECT_GE(unit.num_rows, 1);
      EXPECT_LT(unit.num_rows, 2048);
      next += unit.num_rows;
    }
    EXPECT_EQ(next, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  }
}

TEST(UnitsTest, EdgesOfTheRule) {
  EXPECT_TRUE(ScanUnits({}).empty());
  const auto scan = [](std::vector<int64_t> lengths) { return ScanUnits(lengths); };
  EXPECT_EQ(scan({1024}), (std::vector<Unit>{{0, 1024, true}}));
  EXPECT_EQ(scan({1025}), (std::vector<Unit>{{0, 1024, false}, {1024, 1, true}}));
  EXPECT_EQ(scan({2048}), (std::vector<Unit>{{0, 1024, false}, {1024, 1024, true}}));
  EXPECT_EQ(scan({1000, 2000}), (std::vector<Unit>{{0, 2024, false}, {2024, 976, true}}));
  EXPECT_EQ(scan({600, 600, 5}), (std::vector<Unit>{{0, 1200, true}, {1200, 5, true}}));
}

TEST(ShardsTest, GroupsFillShardsInOrder) {
  for (const int64_t n : {1, 3, 8, 13}) {
    int last = 0;
    for (int64_t g = 0; g < n; ++g) {
      const int shard = ShardOfGroup(g, n, 8);
      EXPECT_GE(shard, last);
      EXPECT_LT(shard, 8);
      EXPECT_EQ(shard, g * 8 / n);
      last = shard;
    }
  }
}

TEST(ShardsTest, MergesBuildTheBalancedTree) {
  // Each merge adds the two newest partial sums; after Z shards one sum remains, of equal halves.
  std::vector<std::vector<int>> stack;
  for (int shard = 0; shard < 8; ++shard) {
    stack.push_back({shard});
    for (int i = MergesAfterShard(shard); i > 0; --i) {
      ASSERT_GE(stack.size(), 2u);
      const std::vector<int> right = stack.back();
      stack.pop_back();
      ASSERT_EQ(stack.back().size(), right.size());
      stack.back().insert(stack.back().end(), right.begin(), right.end());
    }
    EXPECT_LE(stack.size(), 3u + 1u);
  }
  ASSERT_EQ(stack.size(), 1u);
  EXPECT_EQ(stack[0], (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
}

}  // namespace
}  // namespace titan::kernels
