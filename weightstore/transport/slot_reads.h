// SPDX-License-Identifier: Apache-2.0
//
// What a server of a remote lane asks of the host daemon.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_SLOT_READS_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_SLOT_READS_H_

#include <cstddef>
#include <memory>
#include <span>

#include "core/base/status.h"
#include "weightstore/transport/byte_transport.h"
#include "weightstore/transport/rma_source.h"
#include "weightstore/transport/wire.h"

namespace titan::weightstore::lanes {

// The memory of a slot, usable while `owner` lives, whatever becomes of the lease: its bytes may
// then be those of another version, which a second look at the handle finds out.
struct ReadableSlot {
  int fd = -1;                       // of the memory file, for sendfile
  std::span<const std::byte> bytes;  // the same, mapped
  SlotFacts facts;
  std::span<const uint64_t> tile_hashes;  // TileHashes of the verified bytes, or empty: none made
  const RmaSource* windows = nullptr;     // of bytes and header; null: it has none
  std::shared_ptr<const void> owner;
};

// Called for every request, from the server's threads at the same time: must not block.
class SlotReads {
 public:
  SlotReads() = default;
  SlotReads(const SlotReads&) = delete;
  SlotReads& operator=(const SlotReads&) = delete;
  virtual ~SlotReads() = default;

  // Aborted, with the reasons of byte_transport.h: the lease has ended, the grant number is stale,
  // the epoch is superseded. FailedPrecondition: the token is not the lease's.
  virtual StatusOr<ReadableSlot> OpenForRead(const ReadHandle& handle) = 0;
  // The same question without the memory. What was read before an OK was the handle's version.
  virtual Status CheckReadable(const ReadHandle& handle) = 0;
};

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_SLOT_READS_H_
