// SPDX-License-Identifier: Apache-2.0
//
// Goal: advantages equal the exact rationals of the doubles within 1e-12, and equal rewards are
// zero variance exactly, also where binary cannot hold them. Values: 60-digit arithmetic.
#include "orchestrator/advantage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/base/hash.h"

namespace titan::orchestrator {
namespace {

constexpr AdvantageKind kKinds[] = {AdvantageKind::kGroupMean,
                                    AdvantageKind::kGroupZscorePopulation,
                                    AdvantageKind::kGroupZscoreSample};

TEST(AdvantageTest, EqualRewardsAreZeroVarianceExactly) {
  for (const auto& [value, num] :
       {std::pair(0.1, 3), {0.2, 8}, {1.0 / 3, 7}, {0.7, 6}, {-5e99, 4}}) {
    const std::vector<double> rewards(num, value);
    EXPECT_TRUE(IsZeroVariance(rewards));
    for (const AdvantageKind kind : kKinds) {
      for (const double a : GroupAdvantages(rewards, kind, 1e-6)) EXPECT_EQ(a, 0.0);
      for (const double a : GroupAdvantages(rewards, kind, 0)) EXPECT_EQ(a, 0.0);
    }
  }
  EXPECT_FALSE(IsZeroVariance(std::vector<double>{1.0, std::nextafter(1.0, 2.0)}));
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::abs(got[i] - want[i]), 1e-12 * std::abs(want[i])) << i;
  }
}

TEST(AdvantageTest, MatchesExactRationals) {
  const std::vector<double> bf16 = {1.0, 1.0, 1.0, 1.0078125};
  ExpectNear(GroupAdvantages(bf16, kKinds[0], 1e-6),
             {-0.001953125, -0.001953125, -0.001953125, 0.005859375});
  ExpectNear(GroupAdvantages(bf16, kKinds[1], 1e-6),
             {-0.5771796529576867, -0.5771796529576867, -0.5771796529576867, 1.7315389588730603});
  ExpectNear(GroupAdvantages(bf16, kKinds[2], 1e-6), {-0.49987203275961356, -0.49987203275961356,
                                                      -0.49987203275961356, 1.4996160982788407});
  std::vector<double> offset(8, 1000.1);
  offset[7] = 1000.2;
  std::vector<double> want(8, -0.012500000000002842);
  want[7] = 0.0875000000000199;
  ExpectNear(GroupAdvantages(offset, kKinds[0], 1e-6), want);
  want.assign(8, -0.37795304478335573);
  want[7] = 2.64567131348349;
  ExpectNear(GroupAdvantages(offset, kKinds[1], 1e-6), want);
  std::vector<double> seven(8, 0.35);
  seven[7] = 0.95;
  want.assign(8, -0.3535517239344638);
  want[7] = 2.4748620675412467;
  ExpectNear(GroupAdvantages(seven, kKinds[2], 1e-6), want);
  ExpectNear(GroupAdvantages(std::vector<double>{0, 0, 1, 0}, kKinds[1], 1e-6),
             {-0.5773489358593716, -0.5773489358593716, 1.7320468075781148, -0.5773489358593716});
}

TEST(AdvantageTest, PermutingRewardsPermutesAdvantagesBitForBit) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<double> rewards;
    for (uint64_t i = 0; i < 9; ++i) {
      rewards.push_back(static_cast<double>(HashFields(seed, i) % 1000) / 7);
    }
    std::vector<size_t> order = {8, 3, 0, 5, 1, 7, 2, 6, 4};
    std::vector<double> permuted;
    for (const size_t i : order) permuted.push_back(rewards[i]);
    for (const AdvantageKind kind : kKinds) {
      const auto a = GroupAdvantages(rewards, kind, 1e-6);
      const auto b = GroupAdvantages(permuted, kind, 1e-6);
      for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(b[i], a[order[i]]);
    }
    const auto z = GroupAdvantages(rewards, AdvantageKind::kGroupZscorePopulation, 1e-6);
    for (const double v : z) EXPECT_LE(std::abs(v), std::sqrt(8.0));
  }
}

}  // namespace
}  // namespace titan::orchestrator
