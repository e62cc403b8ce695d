// SPDX-License-Identifier: Apache-2.0
// Goal: ids are made of their parts as the design says, and shuffles are permutations that depend on
// every part of their key.
#include "core/base/ids.h"

#include <gtest/gtest.h>

#include <set>

#include "core/base/philox.h"

namespace titan {
namespace {

TEST(IdsTest, GroupIdKeepsItsParts) {
  const GroupId id = MakeGroupId((1ull << 40) - 1, 65535, 255);
  EXPECT_EQ(id.value, ~0ull);
  EXPECT_EQ(StepOf(id), (1ull << 40) - 1);
  EXPECT_EQ(SlotOf(id), 65535u);
  EXPECT_EQ(CandidateOf(id), 255u);
  EXPECT_EQ(MakeGroupId(3, 2, 1).value, 3ull << 24 | 2 << 8 | 1);
}

TEST(IdsTest, SampleIdsOfARunAreDistinct) {
  std::set<SampleId> seen;
  for (Step step = 0; step < 64; ++step) {
    for (uint32_t slot = 0; slot < 16; ++slot) {
      for (uint32_t i = 0; i < 16; ++i) seen.insert(MakeSampleId(MakeGroupId(step, slot, 0), i));
    }
  }
  EXPECT_EQ(seen.size(), 64u * 16 * 16);
}

TEST(RandomTest, PermutationIsAPermutationAndDependsOnSeedDomainAndEpoch) {
  const auto order = RandomPermutation(1, RandomDomain::kDataOrder, 0, 441);
  EXPECT_EQ(std::set<uint32_t>(order.begin(), order.end()).size(), 441u);
  EXPECT_NE(order, RandomPermutation(2, RandomDomain::kDataOrder, 0, 441));
  EXPECT_NE(order, RandomPermutation(1, RandomDomain::kHeldOut, 0, 441));
  EXPECT_NE(order, RandomPermutation(1, RandomDomain::kDataOrder, 1, 441));
  EXPECT_EQ(order, RandomPermutation(1, RandomDomain::kDataOrder, 0, 441));
}

TEST(RandomTest, UniformLiesStrictlyInsideTheUnitInterval) {
  EXPECT_GT(UniformFromWord(0), 0.0);
  EXPECT_LT(UniformFromWord(0xffffffffu), 1.0);
}

}  // namespace
}  // namespace titan
