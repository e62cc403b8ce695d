// SPDX-License-Identifier: Apache-2.0
//
// Rollouts as people read them, from the facts of a job. Pure functions, any thread.
#ifndef TITAN_SERVICES_ORCHESTRATOR_ROLLOUTS_H_
#define TITAN_SERVICES_ORCHESTRATOR_ROLLOUTS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "orchestrator/facts.h"
#include "services/orchestrator/prompts.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::orchestrator {

// Which groups are wanted.
struct RolloutQuery {
  std::optional<Step> step;
  std::set<GroupId> groups;  // empty: all
  uint32_t max_groups = 1000;
  bool with_tokens = true;

  bool Wants(GroupId group) const {
    return (!step.has_value() || StepOf(group) == *step) &&
           (groups.empty() || groups.contains(group));
  }
};
RolloutQuery FromProto(const v1::ListRolloutsRequest& request);

// The groups that are wanted, ascending by id, at most max_groups. Among several replies of one
// sample the first counts, and so does the first score. `data` may be null: then prompts and texts
// are left out. REQUIRES: replies of wanted samples are there.
std::vector<v1::ListRolloutsResponse> CollectRollouts(const std::vector<Fact>& facts,
                                                      const RolloutQuery& query,
                                                      const PreparedData* data);

// The same groups in messages of at most about `max_bytes`: samples that do not fit follow in
// further messages of their group.
std::vector<v1::ListRolloutsResponse> SplitRollout(v1::ListRolloutsResponse group,
                                                   size_t max_bytes);

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_ROLLOUTS_H_
