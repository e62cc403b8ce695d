// SPDX-License-Identifier: Apache-2.0
// Goal: the policy loss, its gradient and the aggregations against float64 autograd. Covered:
// ppo_clip with every KL kind, all reductions, masks; other losses and importance weights are
// skipped by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

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
    const auto tokens = std::count_if(row.begin(), row.end(),
                                      [](const json& m) { return GoldenNumber(m) != 0.0; });
    row_tokens.push_back(tokens);
    counts.tokens += tokens;
    counts.sequences += all_rows || tokens > 0 ? 1 : 0;
  }
  counts.tokens = config["agg"].value("global_tokens", counts.tokens);
  counts.sequences = config["agg"].value("global_rows", counts.sequences);

  double total = 0.0;
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
    for (size_t t = 0; t < new_lp.size(); ++t) {
      if (in["mask"][b][t] == 0) {
        EXPECT_EQ(gradient[t], 0.0);
        continue;
      }
      const json& advantages = expected["advantages"][b];
      const double advantage = GoldenNumber(advantages.is_array() ? advantages[t] : advantages);
      const TokenLoss token = PolicyTokenLoss(loss, new_lp[t], old_lp[t], reference[t], advantage);
      total += weight * token.value;
      EXPECT_NEAR(weight * token.derivative, gradient[t], 1e-12 * std::max(largest, 1e-300))
          << "row " << b << " token " << t;
    }
  }
  const double expected_loss = GoldenNumber(expected["loss"]);
  EXPECT_NEAR(total, expected_loss, 1e-12 * std::max(1.0, std::fabs(expected_loss)));
  return "";
}

TEST(PolicyLossGolden, LossAndGradientMatchFloat64Autograd) {
  golden::GoldenFile file("loss/policy_loss.json");
  file.Run(RunCase);
  file.ExpectSkipped(16);  // gspo, cispo, sapo, reinforce, importance weights
}

}  // namespace
}  // namespace titan::trainer
