// SPDX-License-Identifier: Apache-2.0
//
// A whole version out of another host's slot by one-sided reads: the bytes, then the slot's header,
// which says whether they were that version's all the while. Thread-safe.
#ifndef TITAN_WEIGHTSTORE_REMOTE_SLOT_H_
#define TITAN_WEIGHTSTORE_REMOTE_SLOT_H_

#include <chrono>
#include <cstdint>

#include "core/transport/rma.h"
#include "weightstore/client/slot_header.h"

namespace titan::weightstore {

struct RemoteSlot {
  transport::RmaWindowKey bytes;
  transport::RmaWindowKey header;  // of kSlotHeaderBytes
  uint64_t slot_id = 0;
  uint64_t version = 0;
  uint64_t grant = 0;  // of the lease
};

// Copies the first `to.memory().size()` bytes of the slot. `header` is a window of the own domain
// of kSlotHeaderBytes. Aborted: the slot is another version's, or was taken away meanwhile: what
// was copied must not be used. Else as RmaPeer::Read. The caller hashes what it got.
Status ReadSlot(transport::RmaPeer& peer, const RemoteSlot& slot, const transport::RmaWindow& to,
                const transport::RmaWindow& header, std::chrono::milliseconds deadline);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_REMOTE_SLOT_H_
