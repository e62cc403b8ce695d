// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/subscriber.h"

#include <utility>

namespace titan::weightstore {

Subscriber::Subscriber(LeaderPort& leader, std::string socket_path, std::string holder)
    : leader_(leader), socket_path_(std::move(socket_path)), holder_(std::move(holder)) {}

StatusOr<MappedSlot> Subscriber::Acquire(const std::string& run_id, uint64_t version,
                                         bool evaluation) const {
  TITAN_ASSIGN_OR_RETURN(Lease lease, leader_.AcquireLease(holder_, run_id, version, evaluation));
  const uint64_t lease_id = lease.lease_id;
  StatusOr<MappedSlot> slot = MappedSlot::Map(socket_path_, std::move(lease));
  if (!slot.ok()) {
    (void)leader_.ReleaseLease(lease_id);  // else it ends by its ttl
    return Annotate(slot.status(),
                    "mapping version " + std::to_string(version) + " of run " + run_id);
  }
  return slot;
}

Status Subscriber::Release(MappedSlot slot) const {
  const uint64_t lease_id = slot.lease().lease_id;
  slot.Unmap();
  return leader_.ReleaseLease(lease_id);
}

}  // namespace titan::weightstore
