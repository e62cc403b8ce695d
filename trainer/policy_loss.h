// SPDX-License-Identifier: Apache-2.0
//
// The clipped policy loss of GRPO and DAPO and its derivative by each new log-prob (learning.md
// section 2).
//
//   lr = clamp(new - old, +-log_ratio_clamp), r = exp(lr)
//   a token's loss = max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)
//                    (with dual_clip c and A < 0: min(that, -c A))
//                    + coefficient * k(new - ref), k of the KL kinds below
//   loss = sum over tokens of weight * token's loss, the weights as the aggregation says
//
// KL on d = new - ref: k1 = d, abs = |d|, k2 = d^2 / 2, k3 = exp(-d) + d - 1. in_clamp bounds -d of
// k3, out_clamp the value; straight_through takes the gradient of k2; ratio_weighted multiplies by
// exp(new - old). Sources: Shao et al. 2024 (GRPO), Yu et al. 2025 (DAPO), Schulman 2020 (KL
// estimators).
//
// Arithmetic: double with our own exp, elementwise, so no order matters; the derivative is rounded
// once to f32. There is no mask here: a token that does not count is left out by the caller. Pure
// functions, any thread.
#ifndef TITAN_TRAINER_POLICY_LOSS_H_
#define TITAN_TRAINER_POLICY_LOSS_H_

#include <cstdint>
#include <optional>
#include <span>

namespace titan::trainer {

enum class KlKind { kNone, kK1, kAbs, kK2, kK3 };

struct KlConfig {
  KlKind kind = KlKind::kNone;
  double coefficient = 0.0;
  std::optional<double> in_clamp;
  std::optional<double> out_clamp;
  bool straight_through = false;
  bool ratio_weighted = false;
};

struct PolicyLossConfig {
  double clip_low = 0.2;
  double clip_high = 0.2;
  std::optional<double> dual_clip;
  std::optional<double> log_ratio_clamp = 20.0;
  KlConfig kl;
};

struct TokenLoss {
  double value = 0.0;       // without the aggregation weight
  double derivative = 0.0;  // by new
  double ratio = 1.0;
  bool clipped = false;  // the clipped term is strictly larger
};

// One unmasked token. `reference` is read only with a KL term.
TokenLoss PolicyTokenLoss(const PolicyLossConfig& config, double new_log_prob, double old_log_prob,
                          double reference_log_prob, double advantage);

enum class Aggregation {
  kTokenMean,                 // 1 / tokens
  kTokenSum,                  // 1
  kSequenceMeanTokenMean,     // 1 / (sequences * tokens of the sequence)
  kSequenceMeanTokenSum,      // 1 / sequences
  kSequenceMeanTokenSumNorm,  // 1 / (sequences * constant)
};

// What the weights need of the whole update, counted before the first microbatch.
struct UpdateCounts {
  int64_t tokens = 0;     // unmasked
  int64_t sequences = 0;  // that the aggregation counts
  double constant = 1.0;  // of kSequenceMeanTokenSumNorm
};

// Weight of one token of a sequence with `sequence_tokens` unmasked tokens; counts below 1 count
// as 1.
double AggregationWeight(Aggregation aggregation, const UpdateCounts& counts,
                         int64_t sequence_tokens);

struct SequenceLoss {
  double loss = 0.0;  // weighted sum over its tokens
  double ratio_sum = 0.0;
  double ratio_max = 0.0;
  int64_t tokens = 0;
  int64_t clipped_tokens = 0;
};

// A whole reply, every token of it, without a KL term. REQUIRES: config.kl.kind is kNone (there is
// no reference to read). Writes derivative[t] = f32(weight * d loss_t / d new_t).
SequenceLoss PolicySequenceLoss(const PolicyLossConfig& config,
                                std::span<const float> new_log_probs,
                                std::span<const float> old_log_probs, double advantage,
                                double weight, std::span<float> derivative);

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_POLICY_LOSS_H_
