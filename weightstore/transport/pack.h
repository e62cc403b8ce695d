// SPDX-License-Identifier: Apache-2.0
//
// Gathering of runs at the source of a transfer. Any thread. Internal to weightstore/transport.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_PACK_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_PACK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "weightstore/transport/byte_transport.h"

namespace titan::weightstore::lanes {

// Writes the runs of run_bytes that the loops (outermost first, at most kMaxPackLoops) name, one
// behind the other. REQUIRES: CheckRange accepted them for the slot, and out has room for all.
void PackRuns(std::span<const std::byte> slot, uint64_t offset, uint64_t run_bytes,
              std::span<const PackLoop> loops, std::byte* out);

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_PACK_H_
