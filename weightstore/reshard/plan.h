// SPDX-License-Identifier: Apache-2.0
//
// From the layout of a source to that of a destination: which bytes of whose slot go where. Plans
// hold offsets and no addresses, so one plan serves every version of a run. Pure, deterministic, no
// I/O: equal placements and costs give equal plans.
#ifndef TITAN_WEIGHTSTORE_RESHARD_PLAN_H_
#define TITAN_WEIGHTSTORE_RESHARD_PLAN_H_

#include <cstdint>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/reshard/cost_model.h"
#include "weightstore/reshard/placement.h"

namespace titan::weightstore::reshard {

// A step of a nest of loops, in bytes.
struct Loop {
  uint64_t count = 1;  // at least 2
  uint64_t source_stride = 0;
  uint64_t destination_stride = 0;

  friend bool operator==(const Loop&, const Loop&) = default;
};

// Runs of run_bytes: for each index (i0, i1, ..) of the loops, outermost first,
//   destination[destination_offset + sum(i * destination_stride)]
//     = source[source_offset + sum(i * source_stride)]
struct Region {
  uint32_t source = 0;  // participant
  Method method = Method::kDirect;
  uint64_t source_offset = 0;
  uint64_t destination_offset = 0;
  uint64_t run_bytes = 0;
  std::vector<Loop> loops;

  uint64_t num_runs() const;
  uint64_t num_bytes() const { return num_runs() * run_bytes; }
  // From the first byte of the source to the last one.
  uint64_t range_bytes() const;
  // The same for the destination.
  uint64_t destination_range_bytes() const;

  friend bool operator==(const Region&, const Region&) = default;
};

struct PlanStats {
  uint64_t num_regions = 0;
  uint64_t num_bytes = 0;       // of the destination that are filled
  uint64_t read_bytes = 0;      // that travel
  uint64_t direct_regions = 0;  // by method
  uint64_t over_read_regions = 0;
  uint64_t pack_regions = 0;
  uint64_t cost_ps = 0;  // sum over all regions; saturates

  friend bool operator==(const PlanStats&, const PlanStats&) = default;
};

struct Plan {
  Hash128 source_digest;  // of the placements
  Hash128 destination_digest;
  // Of each participant of the destination, ascending by source, then by destination_offset.
  std::vector<std::vector<Region>> regions;
  PlanStats stats;

  friend bool operator==(const Plan&, const Plan&) = default;
};

// Every byte of every fragment of the destination is written by exactly one region; of replicas the
// participant with the fewest bytes so far is read. InvalidArgument, its message beginning with
//   "source: ..." or "destination: ..."  what Validate said of that placement
//   "dtype", "shape", "layout"           a tensor is not the same on both sides
//   "gap"                                the tensor or the box that no source holds
StatusOr<Plan> MakePlan(const Placement& source, const Placement& destination,
                        const CostModel& costs);

}  // namespace titan::weightstore::reshard

#endif  // TITAN_WEIGHTSTORE_RESHARD_PLAN_H_
