// SPDX-License-Identifier: Apache-2.0
#include "trainer/policy_loss.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/base/check.h"

namespace titan::trainer {

// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series to r^13 (next term < 2e-18 of the
// result); scaled in two factors so that results below the normal range round once.
double Exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 709.8) return std::numeric_limits<double>::infinity();
  if (x < -745.2) return 0.0;
  constexpr double kLog2e = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fefa39efp-1;
  constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;
  constexpr double kShift = 0x1.8p52;  // adding it rounds to an integer
  const double n = std::fma(x, kLog2e, kShift) - kShift;
  double r = std::fma(-n, kLn2High, x);
  r = std::fma(-n, kLn2Low, r);
  double factorial_inverse[14] = {1.0};
  for (int i = 1; i < 14; ++i) factorial_inverse[i] = factorial_inverse[i - 1] / i;
  double p = factorial_inverse[13];
  for (int i = 12; i >= 0; --i) p = std::fma(p, r, factorial_inverse[i]);
  const auto exponent = static_cast<int64_t>(n);
  const int64_t half = exponent / 2;
  const auto power = [](int64_t e) {
    return std::bit_cast<double>(static_cast<uint64_t>(e + 1023) << 52);
  };
  return p * power(half) * power(exponent - half);
}

namespace {

struct Term {
  double value = 0.0;
  double derivative = 0.0;
};

Term KlTerm(const KlConfig& kl, double d, double unclamped_ratio) {
  Term term;
  switch (kl.kind) {
    case KlKind::kNone:
      return term;
    case KlKind::kK1:
      term = {d, 1.0};
      break;
    case KlKind::kAbs:
      term = {std::fabs(d), d > 0 ? 1.0 : d < 0 ? -1.0 : 0.0};
      break;
    case KlKind::kK2:
      term = {d * d / 2, d};
      break;
    case KlKind::kK3: {
      double minus_d = -d;
      bool inside = true;
      if (kl.in_clamp) {
        inside = std::fabs(minus_d) <= *kl.in_clamp;
        minus_d = std::clamp(minus_d, -*kl.in_clamp, *kl.in_clamp);
      }
      const double e = Exp(minus_d);
      term = {e - minus_d - 1.0, inside ? 1.0 - e : 0.0};
      break;
    }
  }
  if (kl.out_clamp) {
    if (std::fabs(term.value) > *kl.out_clamp) term.derivative = 0.0;
    term.value = std::clamp(term.value, -*kl.out_clamp, *kl.out_clamp);
  }
  if (kl.straight_through) term.derivative = d;
  if (kl.ratio_weighted) {  // d exp(new - old) / d new is the ratio itself
    term.derivative = unclamped_ratio * (term.derivative + term.value);
    term.value *= unclamped_ratio;
  }
  return {kl.coefficient * term.value, kl.coefficient * term.derivative};
}

}  // namespace

TokenLoss PolicyTokenLoss(const PolicyLossConfig& config, double new_log_prob, double old_log_prob,
                          double reference_log_prob, double advantage) {
  TokenLoss loss;
  double log_ratio = new_log_prob - old_log_prob;
  const double unclamped_log_ratio = log_ratio;
  bool inside = true;
  if (config.log_ratio_clamp) {
    inside = std::fabs(log_ratio) <= *config.log_ratio_clamp;
    log_ratio = std::clamp(log_ratio, -*config.log_ratio_clamp, *config.log_ratio_clamp);
  }
  const double ratio = Exp(log_ratio);
  const double low = 1.0 - config.clip_low;
  const double high = 1.0 + config.clip_high;
  const double plain = -ratio * advantage;
  const double clipped = -std::clamp(ratio, low, high) * advantage;
  loss.ratio = ratio;
  loss.clipped = clipped > plain;
  loss.value = std::max(plain, clipped);
  // Never multiply an infinite ratio by a zero: the branch that was not taken has no derivative.
  const bool in_band = ratio >= low && ratio <= high;
  if (inside && (!loss.clipped || in_band)) loss.derivative = plain;
  if (config.dual_clip && advantage < 0 && -*config.dual_clip * advantage < loss.value) {
    loss.value = -*config.dual_clip * advantage;
    loss.derivative = 0.0;
  }
  if (config.kl.kind != KlKind::kNone) {
    const Term kl = KlTerm(config.kl, new_log_prob - reference_log_prob,
                           config.kl.ratio_weighted ? Exp(unclamped_log_ratio) : 1.0);
    loss.value += kl.value;
    loss.derivative += kl.derivative;
  }
  return loss;
}

double AggregationWeight(Aggregation aggregation, const UpdateCounts& counts,
                         int64_t sequence_tokens) {
  const auto at_least_one = [](int64_t n) { return static_cast<double>(std::max<int64_t>(n, 1)); };
  switch (aggregation) {
    case Aggregation::kTokenMean:
      return 1.0 / at_least_one(counts.tokens);
    case Aggregation::kTokenSum:
      return 1.0;
    case Aggregation::kSequenceMeanTokenMean:
      return 1.0 / (at_least_one(counts.sequences) * at_least_one(sequence_tokens));
    case Aggregation::kSequenceMeanTokenSum:
      return 1.0 / at_least_one(counts.sequences);
    case Aggregation::kSequenceMeanTokenSumNorm:
      return 1.0 / (at_least_one(counts.sequences) * counts.constant);
  }
  TITAN_CHECK(false);
}

SequenceLoss PolicySequenceLoss(const PolicyLossConfig& config,
                                std::span<const float> new_log_probs,
                                std::span<const float> old_log_probs, double advantage,
                                double weight, std::span<float> derivative) {
  TITAN_CHECK(config.kl.kind == KlKind::kNone);
  TITAN_CHECK(new_log_probs.size() == old_log_probs.size());
  TITAN_CHECK(new_log_probs.size() == derivative.size());
  SequenceLoss sum;
  for (size_t t = 0; t < new_log_probs.size(); ++t) {
    const TokenLoss token =
        PolicyTokenLoss(config, new_log_probs[t], old_log_probs[t], 0.0, advantage);
    derivative[t] = static_cast<float>(weight * token.derivative);
    sum.loss += weight * token.value;
    sum.ratio_sum += token.ratio;
    sum.ratio_max = std::max(sum.ratio_max, token.ratio);
    sum.clipped_tokens += token.clipped ? 1 : 0;
    ++sum.tokens;
  }
  return sum;
}

}  // namespace titan::trainer
