// SPDX-License-Identifier: Apache-2.0
//
// The graders of this build by name. To add one: a file with its class, a row in registry.cc.
#ifndef TITAN_REWARDS_REGISTRY_H_
#define TITAN_REWARDS_REGISTRY_H_

#include <memory>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "rewards/grader.h"

namespace titan::rewards {

// In order of name.
std::vector<GraderInfo> ListGraders();

// parameters: an object (null: all defaults). NotFound for an unknown grader and InvalidArgument
// for bad parameters; both name what was given and the nearest known name.
StatusOr<std::unique_ptr<Grader>> MakeGrader(std::string_view name, const Json& parameters);

}  // namespace titan::rewards

#endif  // TITAN_REWARDS_REGISTRY_H_
