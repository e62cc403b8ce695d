// SPDX-License-Identifier: Apache-2.0
//
// numeric_match: a number of the reply equals the answer, exactly: numbers are compared as decimals
// of any length, never rounded. Pure functions, thread-safe.
#ifndef TITAN_REWARDS_NUMERIC_MATCH_H_
#define TITAN_REWARDS_NUMERIC_MATCH_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "rewards/grader.h"

namespace titan::rewards {

// The numbers of a text, left to right: -?[0-9]+ (integers), with (\.[0-9]+)? behind it otherwise.
// Only the ASCII digits count, and a minus sign belongs to the digits right behind it ("12-5" holds
// 12 and -5).
std::vector<std::string_view> FindNumbers(std::string_view text, bool integers);

// One spelling for each value: no leading or trailing zeros, no plus sign, no -0. "" when the text
// is not
// [+-]?[0-9]+(\.[0-9]+)? as a whole.
std::string CanonicalNumber(std::string_view text);

GraderInfo NumericMatchInfo();
StatusOr<std::unique_ptr<Grader>> MakeNumericMatch(const Json& parameters);

}  // namespace titan::rewards

#endif  // TITAN_REWARDS_NUMERIC_MATCH_H_
