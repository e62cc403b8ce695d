// SPDX-License-Identifier: Apache-2.0
//
// Advantages of one group (learning.md section 1), in double. Pure functions, any thread.
#ifndef TITAN_ORCHESTRATOR_ADVANTAGE_H_
#define TITAN_ORCHESTRATOR_ADVANTAGE_H_

#include <span>
#include <vector>

#include "orchestrator/job_spec.h"

namespace titan::orchestrator {

// True exactly when all rewards are equal (compared as numbers, not by a computed deviation: the
// mean of equal numbers need not equal them in binary).
bool IsZeroVariance(std::span<const double> rewards);

// One advantage per reward. Rewards are centred on differences from the smallest one, summed in
// ascending order: a large common offset loses nothing, and permuting rewards permutes advantages.
// Equal rewards give exactly 0. `epsilon` is added to the deviation of the z-score forms.
// REQUIRES: rewards are finite and of magnitude at most kMaxReward; not empty.
std::vector<double> GroupAdvantages(std::span<const double> rewards, AdvantageKind kind,
                                    double epsilon);

// Larger rewards are refused at the door, so that squares of differences stay finite.
inline constexpr double kMaxReward = 1e100;

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_ADVANTAGE_H_
