// SPDX-License-Identifier: Apache-2.0
//
// regex_match: a Perl-compatible regular expression finds its place in the reply; by default what
// it captures (its first group, or the whole match where it has none) is compared with the answer.
//
// Work is bounded by counting, not by time, so the grade of a sample is the same on every machine:
// one step for each pattern item tried and each byte passed over (also by the check that a reply
// which is not UTF-8 needs before each search), kMaxRegexSteps for a reply. A
// reply over a bound is a model fault, because scoring it again would end the same way.
#ifndef TITAN_REWARDS_REGEX_MATCH_H_
#define TITAN_REWARDS_REGEX_MATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "rewards/grader.h"

namespace titan::rewards {

inline constexpr size_t kMaxPatternBytes = 4096;
inline constexpr size_t kMaxRegexReplyBytes = size_t{1} << 20;
inline constexpr uint64_t kMaxRegexSteps = uint64_t{1} << 23;

GraderInfo RegexMatchInfo();
StatusOr<std::unique_ptr<Grader>> MakeRegexMatch(const Json& parameters);

}  // namespace titan::rewards

#endif  // TITAN_REWARDS_REGEX_MATCH_H_
