// SPDX-License-Identifier: Apache-2.0
#include "trainer/policy_loss.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/double_exp.h"

namespace titan::trainer {

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
      const double e = DoubleExp(minus_d);
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
  const double ratio = DoubleExp(log_ratio);
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
                           config.kl.ratio_weighted ? DoubleExp(unclamped_log_ratio) : 1.0);
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
