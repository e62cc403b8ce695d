// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/held_version.h"

#include <utility>

#include "weightstore/client/slot_header.h"

namespace titan::weightstore {

HeldVersion& HeldVersion::operator=(HeldVersion&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  lease_ = std::move(other.lease_);
  connection_ = std::move(other.connection_);
  slot_ = std::move(other.slot_);
  header_ = std::move(other.header_);
  pulled_ = std::move(other.pulled_);
  return *this;
}

StatusOr<HeldVersion> HeldVersion::Map(const std::string& socket_path, Lease lease,
                                       MappedMemory::Tables tables) {
  HeldVersion mapped;
  TITAN_ASSIGN_OR_RETURN(mapped.connection_, ConnectUnix(socket_path, kSocketTimeout));
  TITAN_ASSIGN_OR_RETURN(
      SocketAnswer answer,
      Call(mapped.connection_.get(),
           {.kind = SocketRequestKind::kMapLease, .id = lease.lease_id, .grant = lease.grant}));
  if (answer.fds.size() != 2) return DataLoss("weight store's socket: two descriptors expected");
  if (answer.slot_bytes < lease.manifest->slot_bytes) {
    return DataLoss("the slot is smaller than the manifest says");
  }
  TITAN_ASSIGN_OR_RETURN(mapped.slot_, MappedMemory::Map(answer.fds[0].get(), answer.slot_bytes,
                                                         /*writable=*/false, tables));
  TITAN_ASSIGN_OR_RETURN(mapped.header_, MappedMemory::Map(answer.fds[1].get(), kSlotHeaderBytes,
                                                           /*writable=*/false));
  SlotHeaderFields header;
  if (!SlotHeaderPage(mapped.header_.data()).Read(&header) || header.grant != lease.grant) {
    return Aborted("lease " + std::to_string(lease.lease_id) + ": its grant number is stale");
  }
  if (header.version != lease.version || header.digest != lease.digest) {
    return DataLoss("the slot holds version " + std::to_string(header.version) + " with digest " +
                    ToHex(header.digest) + ", the lease is for version " +
                    std::to_string(lease.version) + " with digest " + ToHex(lease.digest));
  }
  mapped.lease_ = std::move(lease);
  return mapped;
}

HeldVersion HeldVersion::OfPulled(Lease lease, std::shared_ptr<const MappedMemory> memory) {
  HeldVersion held;
  held.lease_ = std::move(lease);
  held.pulled_ = std::move(memory);
  return held;
}

bool HeldVersion::HeaderUnchanged() const {
  if (pulled_ != nullptr) return true;
  return mapped() && SlotHeaderPage(header_.data()).GrantAfterReads() == lease_.grant;
}

void HeldVersion::Drop() {
  slot_ = MappedMemory();
  header_ = MappedMemory();
  connection_.Close();
  pulled_.reset();
}

}  // namespace titan::weightstore
