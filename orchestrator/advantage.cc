// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/advantage.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace titan::orchestrator {

bool IsZeroVariance(std::span<const double> rewards) {
  return std::all_of(rewards.begin(), rewards.end(), [&](double r) { return r == rewards[0]; });
}

std::vector<double> GroupAdvantages(std::span<const double> rewards, AdvantageKind kind,
                                    double epsilon) {
  TITAN_CHECK(!rewards.empty());
  if (IsZeroVariance(rewards)) return std::vector<double>(rewards.size(), 0.0);
  const double smallest = *std::min_element(rewards.begin(), rewards.end());
  std::vector<double> out(rewards.begin(), rewards.end());
  for (double& r : out) r -= smallest;

  const auto num = static_cast<double>(out.size());
  std::vector<double> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  double mean = 0;
  for (double d : sorted) mean += d;
  mean /= num;
  for (double& d : out) d -= mean;
  if (kind == AdvantageKind::kGroupMean) return out;

  double squares = 0;
  for (double d : sorted) squares += (d - mean) * (d - mean);
  const double divisor = kind == AdvantageKind::kGroupZscoreSample ? num - 1 : num;
  const double scale = std::sqrt(squares / divisor) + epsilon;
  for (double& d : out) d /= scale;
  return out;
}

}  // namespace titan::orchestrator
