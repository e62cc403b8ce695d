// SPDX-License-Identifier: Apache-2.0
//
// Carries out what a resharding plan (weightstore/reshard/plan.h) says for one participant of the
// destination: reads the regions out of the sources' slots and puts them into place.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_PULL_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_PULL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/status.h"
#include "weightstore/reshard/plan.h"
#include "weightstore/transport/byte_transport.h"

namespace titan::weightstore::lanes {

struct PullOptions {
  int parallel_sources = 4;             // read at the same time, each by a thread; at least 1
  uint64_t scratch_bytes = 32 << 20;    // for each of them, for over-read and packed bytes
  size_t max_pieces = size_t{1} << 14;  // of one Read
};

// sources[i] is the open slot of participant i of the plan's source; null where no region reads it.
// On failure the destination's content is undefined. InvalidArgument: options, a region of a source
// that is null or not there, one that does not lie within slot or destination. Otherwise the codes
// of RemoteSlot::Read, naming the source: of all that failed, the one with the lowest number.
Status PullRegions(std::span<const reshard::Region> regions, std::span<RemoteSlot* const> sources,
                   std::span<std::byte> destination, SteadyTime deadline,
                   const PullOptions& options = {});

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_PULL_H_
