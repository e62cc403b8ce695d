// SPDX-License-Identifier: Apache-2.0
// Goal: the ranks' subtrees are the maximal ones and cover the shards, each once, in order.
#include "trainer/ranks.h"

#include <gtest/gtest.h>

namespace titan::trainer {
namespace {

TEST(RanksTest, SubtreesCoverTheShardsAndAreMaximal) {
  for (int shards = 1; shards <= 256; shards *= 2) {
    for (int ranks = 1; ranks <= shards; ++ranks) {
      int next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const int begin = next;
        std::vector<Subtree> subtrees = SubtreesOf(shards, ranks, rank);
        ASSERT_FALSE(subtrees.empty());
        for (const Subtree& subtree : subtrees) {
          ASSERT_EQ(subtree.first, next);
          ASSERT_EQ(subtree.first % subtree.size, 0);
          next += subtree.size;
        }
        // A larger one would leave the rank's own shards.
        for (const Subtree& subtree : subtrees) {
          const int parent = subtree.first / (2 * subtree.size) * (2 * subtree.size);
          EXPECT_TRUE(parent < begin || parent + 2 * subtree.size > next || shards == subtree.size);
        }
      }
      ASSERT_EQ(next, shards);
    }
  }
}

TEST(RanksTest, ThreeRanksOfEightShards) {
  EXPECT_EQ(SubtreesOf(8, 3, 0), (std::vector<Subtree>{{0, 2}}));
  EXPECT_EQ(SubtreesOf(8, 3, 1), (std::vector<Subtree>{{2, 2}, {4, 1}}));
  EXPECT_EQ(SubtreesOf(8, 3, 2), (std::vector<Subtree>{{5, 1}, {6, 2}}));
}

}  // namespace
}  // namespace titan::trainer
