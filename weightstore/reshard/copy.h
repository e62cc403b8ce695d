// SPDX-License-Identifier: Apache-2.0
//
// Regions carried out in memory: from slot to slot, and the two halves of it, gathering into
// consecutive bytes and placing out of them. Any thread.
#ifndef TITAN_WEIGHTSTORE_RESHARD_COPY_H_
#define TITAN_WEIGHTSTORE_RESHARD_COPY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/status.h"
#include "weightstore/reshard/plan.h"

namespace titan::weightstore::reshard {

// Copies a region. `source` begins at the slot's byte source_base (an over-read range does not
// begin at 0). InvalidArgument "bounds": the region does not lie within the spans.
Status CopyRegion(const Region& region, std::span<const std::byte> source, uint64_t source_base,
                  std::span<std::byte> destination);

// Gathers runs [first_run, first_run + num_runs) of the region, in the order of its loops, into
// `out` of num_runs * run_bytes. InvalidArgument "bounds", as above, or a size that is not that.
Status GatherRuns(const Region& region, uint64_t first_run, uint64_t num_runs,
                  std::span<const std::byte> source, std::span<std::byte> out);

// The inverse: puts what GatherRuns made into its place.
Status PlaceRuns(const Region& region, uint64_t first_run, uint64_t num_runs,
                 std::span<const std::byte> in, std::span<std::byte> destination);

}  // namespace titan::weightstore::reshard

#endif  // TITAN_WEIGHTSTORE_RESHARD_COPY_H_
