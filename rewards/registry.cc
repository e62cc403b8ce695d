// SPDX-License-Identifier: Apache-2.0
#include "rewards/registry.h"

#include "core/base/nearest_name.h"
#include "rewards/exact_match.h"
#include "rewards/numeric_match.h"
#include "rewards/parameters.h"
#include "rewards/regex_match.h"

namespace titan::rewards {
namespace {

struct Row {
  GraderInfo (*info)();
  StatusOr<std::unique_ptr<Grader>> (*make)(const Json& parameters);
};

// In order of name.
constexpr Row kGraders[] = {
    {ExactMatchInfo, MakeExactMatch},
    {NumericMatchInfo, MakeNumericMatch},
    {RegexMatchInfo, MakeRegexMatch},
};

}  // namespace

std::vector<GraderInfo> ListGraders() {
  std::vector<GraderInfo> infos;
  for (const Row& row : kGraders) infos.push_back(row.info());
  return infos;
}

StatusOr<std::unique_ptr<Grader>> MakeGrader(std::string_view name, const Json& parameters) {
  std::vector<std::string> names;
  for (const Row& row : kGraders) {
    names.push_back(row.info().name);
    if (names.back() == name) return row.make(parameters);
  }
  std::string message = "unknown grader '" + std::string(name.substr(0, 64)) + "'";
  const std::string nearest = NearestName(name, names);
  if (!nearest.empty()) return NotFound(message + "; did you mean '" + nearest + "'?");
  message += "; known are";
  for (const std::string& known : names) message += " " + known;
  return NotFound(message);
}

}  // namespace titan::rewards
