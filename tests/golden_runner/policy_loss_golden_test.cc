// SPDX-License-Identifier: Apache-2.0
// Goal: from rewards to gradients against float64 autograd: group advantages as the orchestrator
// computes them, the policy loss, its gradient and the aggregations. Covered: ppo_clip with every
// KL kind, all reductions, masks; other losses and importance weights are skipped by name. Token by
// token in double, and whole replies in binary32 as the trainer calls it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "orchestrator/advantage.h"
#include "tests/support/golden.h"
#include "trainer/policy_loss.h"

namespace titan::trainer {
namespace {

using golden::GoldenNumber;
using golden::GoldenNumbers;
using nlohmann::json;

std::optional<double> Optional(const json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return std::nullopt;
  return GoldenNumber(object[key]);
}

const std::map<std::string, Aggregation> kAggregations = {
    {"token-mean", Aggregation::kTokenMean},
    {"token-sum", Aggregation::kTokenSum},
    {"seq-mean-token-mean", Aggregation::kSequenceMeanTokenMean},
    {"seq-mean-token-sum", Aggregation::kSequenceMeanTokenSum},
    {"seq-mean-token-sum-norm", Aggregation::kSequenceMeanTokenSumNorm}};

KlConfig KlOf(const json& config) {
  KlConfig kl;
  if (!config.contains("kl") || config["kl"].is_null()) return kl;
  const json& in = config["kl"];
  std::string kind = in["kind"];
  if (kind.back() == '+') {
    kl.straight_through = true;
    kind.pop_back();
  }
  kl.kind = kind == "k1"    ? KlKind::kK1
            : kind == "k2"  ? KlKind::kK2
            : kind == "abs" ? KlKind::kAbs
                            : KlKind::kK3;
  kl.coefficient = in["coef"];
  kl.in_clamp = Optional(in, "in_clamp");
  kl.out_clamp = Optional(in, "out_clamp");
  kl.ratio_weighted = in.value("ratio_weighted", false);
  return kl;
}

std::optional<orchestrator::AdvantageKind> KindOf(const json& config) {
  using orchestrator::AdvantageKind;
  if (!config.contains("adv") || config["adv"].is_null()) return std::nullopt;
  if (config["adv"]["kind"] != "grpo") return std::nullopt;
  const std::string std_kind = config["adv"]["std"];
  if (std_kind == "none") return AdvantageKind::kGroupMean;
  if (std_kind == "sample") return AdvantageKind::kGroupZscoreSample;
  if (std_kind == "population") return AdvantageKind::kGroupZscorePopulation;
  return std::nullopt;
}

// The product's advantages of a case that starts from rewards; empty when it has none or is of a
// kind that the product lacks.
std::vector<double> AdvantagesOf(const json& c) {
  const auto kind = KindOf(c["config"]);
  if (!kind || !c["inputs"].contains("rewards")) return {};
  const auto rewards = GoldenNumbers(c["inputs"]["rewards"]);
  std::map<int64_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < rewards.size(); ++i) {
    groups[c["inputs"]["groups"][i].get<int64_t>()].push_back(i);
  }
  std::vector<double> advantages(rewards.size());
  const bool raw = c["config"]["adv"].value("singleton", "zero") == "raw";
  for (const auto& [group, members] : groups) {
    // A group of one never trains in the product: only the oracle's `zero` is its rule.
    if (members.size() == 1 && raw) return {};
    std::vector<double> of_group;
    for (const size_t i : members) of_group.push_back(rewards[i]);
    // A spread of rounding noise: the oracle's own mean is rounded by as much, the product's is
    // not (it centres on differences), so its numbers are no standard here.
    const auto [low, high] = std::minmax_element(of_group.begin(), of_group.end());
    if (*high > *low && *high - *low < 1e-12 * std::fabs(*high)) return {};
    const auto out =
        orchestrator::GroupAdvantages(of_group, *kind, GoldenNumber(c["config"]["adv"]["eps"]));
    for (size_t i = 0; i < members.size(); ++i) advantages[members[i]] = out[i];
  }
  return advantages;
}

struct Covered {
  int advantages = 0;
  int sequences = 0;
} covered;

// The reply's unmasked tokens as the trainer has them, in binary32; returns their loss.
double CheckWholeReply(const PolicyLossConfig& loss, const json& mask,
                       const std::vector<double>& new_lp, const std::vector<double>& old_lp,
                       double advantage, double weight, const std::vector<double>& gradient,
                       double largest) {
  std::vector<float> fresh, old, derivative;
  std::vector<size_t> at;
  for (size_t t = 0; t < new_lp.size(); ++t) {
    if (GoldenNumber(mask[t]) == 0.0) continue;
    at.push_back(t);
    fresh.push_back(static_cast<float>(new_lp[t]));
    old.push_back(static_cast<float>(old_lp[t]));
  }
  derivative.resize(fresh.size());
  const SequenceLoss sum = PolicySequenceLoss(loss, fresh, old, advantage, weight, derivative);
  EXPECT_EQ(sum.tokens, static_cast<int64_t>(at.size()));
  for (size_t i = 0; i < at.size(); ++i) {
    // Rounding the inputs can move a token across the clip's edge, where the derivative jumps.
    const TokenLoss exact = PolicyTokenLoss(loss, new_lp[at[i]], old_lp[at[i]], 0.0, advantage);
    const TokenLoss rounded = PolicyTokenLoss(loss, fresh[i], old[i], 0.0, advantage);
    if ((exact.derivative == 0.0) != (rounded.derivative == 0.0)) continue;
    EXPECT_NEAR(derivative[i], gradient[at[i]], 1e-5 * std::max(largest, 1e-300)) << at[i];
  }
  return sum.loss;
}

std::string RunCase(const json& c) {
  const json& config = c["config"];
  if (config["policy"]["kind"] != "ppo_clip")
    return "loss kind " + config["policy"]["kind"].get<std::string>();
  if (config.contains("is") && !config["is"].is_null()) return "importance weights";
  if (!kAggregations.contains(config["agg"]["mode"])) return "aggregation";

  PolicyLossConfig loss;
  loss.clip_low = config["policy"]["clip_low"];
  loss.clip_high = config["policy"]["clip_high"];
  loss.dual_clip = Optional(config["policy"], "dual_clip");
  loss.log_ratio_clamp = Optional(config["policy"], "log_ratio_clamp");
  loss.kl = KlOf(config);

  const json& in = c["inputs"];
  const json& expected = c["expected"];
  UpdateCounts counts;
  const bool all_rows = config["agg"].value("rows", "nonempty") == std::string("all");
  counts.constant = config["agg"].value("norm", 1.0);
  std::vector<int64_t> row_tokens;
  for (const json& row : in["mask"]) {
    const auto tokens =
        std::count_if(row.begin(), row.end(), [](const json& m) { return GoldenNumber(m) != 0.0; });
    row_tokens.push_back(tokens);
    counts.tokens += tokens;
    counts.sequences += all_rows || tokens > 0 ? 1 : 0;
  }
  counts.tokens = config["agg"].value("global_tokens", counts.tokens);
  counts.sequences = config["agg"].value("global_rows", counts.sequences);

  const std::vector<double> computed = AdvantagesOf(c);
  double total = 0.0;
  double total_of_replies = 0.0;
  bool all_replies = loss.kl.kind == KlKind::kNone;
  double largest = 0.0;
  for (const json& row : expected["grad_new"]) {
    for (const double g : GoldenNumbers(row)) largest = std::max(largest, std::fabs(g));
  }
  for (size_t b = 0; b < in["mask"].size(); ++b) {
    const auto new_lp = GoldenNumbers(in["new"][b]);
    const auto old_lp = GoldenNumbers(in["old"][b]);
    const auto reference = in.contains("ref") ? GoldenNumbers(in["ref"][b]) : new_lp;
    const auto gradient = GoldenNumbers(expected["grad_new"][b]);
    const double weight =
        AggregationWeight(kAggregations.at(config["agg"]["mode"]), counts, row_tokens[b]);
    const json& advantages = expected["advantages"][b];
    if (!computed.empty()) {
      const double golden = GoldenNumber(advantages);
      EXPECT_NEAR(computed[b], golden, 1e-12 * std::max(1.0, std::fabs(golden))) << "row " << b;
      ++covered.advantages;
    }
    const auto advantage_of = [&](size_t t) {
      if (!computed.empty()) return computed[b];
      return GoldenNumber(advantages.is_array() ? advantages[t] : advantages);
    };
    if (all_replies && !advantages.is_array()) {
      total_of_replies += CheckWholeReply(loss, in["mask"][b], new_lp, old_lp, advantage_of(0),
                                          weight, gradient, largest);
      ++covered.sequences;
    } else {
      all_replies = false;
    }
    for (size_t t = 0; t < new_lp.size(); ++t) {
      if (in["mask"][b][t] == 0) {
        EXPECT_EQ(gradient[t], 0.0);
        continue;
      }
      const TokenLoss token =
          PolicyTokenLoss(loss, new_lp[t], old_lp[t], reference[t], advantage_of(t));
      total += weight * token.value;
      EXPECT_NEAR(weight * token.derivative, gradient[t], 1e-12 * std::max(largest, 1e-300))
          << "row " << b << " token " << t;
    }
  }
  const double expected_loss = GoldenNumber(expected["loss"]);
  EXPECT_NEAR(total, expected_loss, 1e-12 * std::max(1.0, std::fabs(expected_loss)));
  if (all_replies) {
    EXPECT_NEAR(total_of_replies, expected_loss, 1e-5 * std::max(1.0, std::fabs(expected_loss)));
  }
  return "";
}

TEST(PolicyLossGolden, LossAndGradientMatchFloat64Autograd) {
  golden::GoldenFile file("loss/policy_loss.json");
  file.Run(RunCase);
  file.ExpectSkipped(16);  // gspo, cispo, sapo, reinforce, importance weights
  if (golden::IsDefaultGoldenDir()) {
    EXPECT_GE(covered.advantages, 100);
    EXPECT_GE(covered.sequences, 100);
  }
}

}  // namespace
}  // namespace titan::trainer
