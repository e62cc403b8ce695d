// SPDX-License-Identifier: Apache-2.0
//
// exact_match: the reply is the answer, byte for byte; with trim (the default) white space at the
// ends of both does not count (space, \t, \n, \v, \f, \r; never inside, never other code points).
#ifndef TITAN_REWARDS_EXACT_MATCH_H_
#define TITAN_REWARDS_EXACT_MATCH_H_

#include <memory>

#include "core/base/status.h"
#include "rewards/grader.h"

namespace titan::rewards {

GraderInfo ExactMatchInfo();
StatusOr<std::unique_ptr<Grader>> MakeExactMatch(const Json& parameters);

}  // namespace titan::rewards

#endif  // TITAN_REWARDS_EXACT_MATCH_H_
