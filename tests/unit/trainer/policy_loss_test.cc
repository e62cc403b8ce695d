// SPDX-License-Identifier: Apache-2.0
// Goal: the derivative is the slope of the value, and overflow in a
// branch that was not taken cannot reach a gradient. The golden file of the loss is in
// tests/golden_runner.
#include "trainer/policy_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace titan::trainer {
namespace {

TEST(PolicyLossTest, DerivativeIsTheSlopeOfTheValue) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  PolicyLossConfig config;
  config.dual_clip = 3.0;
  for (int i = 0; i < 20000; ++i) {
    config.kl.kind = static_cast<KlKind>(i % 5);
    config.kl.coefficient = 0.1;
    config.kl.ratio_weighted = i % 7 == 0;
    const double old_lp = -1.5 + uniform(random);
    const double new_lp = old_lp + uniform(random);
    const double reference = old_lp + 0.3 * uniform(random);
    const double advantage = 2 * uniform(random);
    constexpr double kStep = 1e-6;
    const TokenLoss middle = PolicyTokenLoss(config, new_lp, old_lp, reference, advantage);
    const TokenLoss left = PolicyTokenLoss(config, new_lp - kStep, old_lp, reference, advantage);
    const TokenLoss right = PolicyTokenLoss(config, new_lp + kStep, old_lp, reference, advantage);
    const double slope = (right.value - left.value) / (2 * kStep);
    const bool at_kink = left.clipped != right.clipped || std::fabs(new_lp - reference) < 2e-6 ||
                         std::fabs(middle.value - (left.value + right.value) / 2) > 1e-9;
    if (at_kink) continue;
    ASSERT_NEAR(middle.derivative, slope, 1e-7) << i;
  }
}

TEST(PolicyLossTest, OverflowInTheBranchNotTakenLeavesAFiniteDerivative) {
  PolicyLossConfig config;
  config.log_ratio_clamp.reset();
  const TokenLoss loss = PolicyTokenLoss(config, -0.1, -2000.0, 0.0, 1.0);
  EXPECT_EQ(loss.value, -1.2);
  EXPECT_EQ(loss.derivative, 0.0);
  EXPECT_TRUE(loss.clipped);
}

TEST(PolicyLossTest, OnPolicyDerivativeIsMinusAdvantageTimesWeight) {
  const float log_probs[2] = {-0.3f, -1.7f};
  float derivative[2];
  const SequenceLoss loss =
      PolicySequenceLoss(PolicyLossConfig{}, log_probs, log_probs, 1.5, 0.125, derivative);
  EXPECT_EQ(derivative[0], -0.1875f);
  EXPECT_EQ(derivative[1], -0.1875f);
  EXPECT_EQ(loss.ratio_max, 1.0);
  EXPECT_EQ(loss.clipped_tokens, 0);
}

TEST(PolicyLossDeathTest, AReplyWithAKlTermButNoReferenceIsABug) {
  PolicyLossConfig config;
  config.kl.kind = KlKind::kK3;
  const float log_probs[1] = {-0.3f};
  float derivative[1];
  EXPECT_DEATH(PolicySequenceLoss(config, log_probs, log_probs, 1.0, 1.0, derivative),
               "check failed");
}

}  // namespace
}  // namespace titan::trainer
