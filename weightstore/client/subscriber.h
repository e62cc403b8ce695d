// SPDX-License-Identifier: Apache-2.0
//
// The reader's side: a lease from the leader, a read-only map from the host daemon.
//
//   auto slot = subscriber.Acquire(run, version, /*evaluation=*/false);
//   loop: run a step on slot->bytes(); if (!slot->HeaderUnchanged()) discard the step, become stale
//   subscriber.Release(std::move(*slot));
#ifndef TITAN_WEIGHTSTORE_CLIENT_SUBSCRIBER_H_
#define TITAN_WEIGHTSTORE_CLIENT_SUBSCRIBER_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "weightstore/client/leader_port.h"
#include "weightstore/client/slot_mapping.h"

namespace titan::weightstore {

// Thread-safe: holds no state that changes.
class Subscriber {
 public:
  // leader must outlive the subscriber. holder: the worker id that operators see.
  Subscriber(LeaderPort& leader, std::string socket_path, std::string holder);

  // The version's bytes are verified by the host daemon for this sealed slot in this incarnation;
  // the header's digest equals the lease's. Codes of AcquireLease and MappedSlot::Map. A lease that
  // could not be mapped is given back.
  StatusOr<MappedSlot> Acquire(const std::string& run_id, uint64_t version, bool evaluation) const;

  // Unmaps, then tells the leader. An error means only that the leader did not hear it: the lease
  // ends by the closed connection all the same.
  Status Release(MappedSlot slot) const;

 private:
  LeaderPort& leader_;
  const std::string socket_path_;
  const std::string holder_;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_SUBSCRIBER_H_
