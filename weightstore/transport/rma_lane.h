// SPDX-License-Identifier: Apache-2.0
//
// Which lane of one-sided reads a daemon has, decided once at its start: what this machine has,
// what the configuration wants, what may be locked. Any thread.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_RMA_LANE_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_RMA_LANE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/transport/rma.h"
#include "core/transport/rma_probe.h"
#include "weightstore/client/remote_lease.h"

namespace titan::weightstore::lanes {

struct RmaWanted {
  bool required = false;    // require_rdma
  bool shm_test = false;    // daemon.debug.shm_test_lane
  std::string device;       // rdma_device; empty: any
  uint64_t lock_bytes = 0;  // of slots that will be registered; 0: not known yet
  // daemon.debug.shm_test_lock_bytes, which takes the place of the process's limit on that lane.
  std::optional<uint64_t> shm_test_lock_bytes = std::nullopt;
  std::function<void(double num_bytes)> registered;  // RmaOptions::registered
};

// What the machine has, and this process may.
struct RmaFacts {
  titan::transport::FoundTransports transports;
  titan::transport::LockLimit lockable;
};

struct LaneChoice {
  bool opens = false;
  std::string found;  // what there is, or why it is not used
};

// The lane shm-test where the test setting asks for it, and nowhere else; else that of a device;
// else none. FailedPrecondition: what is required or named is not there; says what there is
// instead. ResourceExhausted: there is a device, and less than lock_bytes may be locked; says both
// numbers and what to set. Pure.
StatusOr<LaneChoice> ChooseRmaLane(const RmaWanted& wanted, const RmaFacts& facts);

struct OpenedLane {
  std::shared_ptr<titan::transport::RmaDomain> domain;  // null: there is none
  std::string found;                                    // as of the choice
};

// Looks at the machine, chooses and opens. Codes of ChooseRmaLane; FailedPrecondition also when
// what was asked for does not open.
StatusOr<OpenedLane> OpenRmaLane(const RmaWanted& wanted);

// REQUIRES: lane.domain.
Lane LaneOf(const titan::transport::RmaDomain& domain);

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_RMA_LANE_H_
