// SPDX-License-Identifier: Apache-2.0
//
// Which lane of one-sided reads a daemon has, decided once at its start: what this machine has,
// what the configuration wants, what may be locked. Any thread.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_RMA_LANE_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_RMA_LANE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/transport/rma.h"
#include "weightstore/client/remote_lease.h"

namespace titan::weightstore::lanes {

struct RmaWanted {
  bool required = false;                             // require_rdma
  bool shm_test = false;                             // daemon.debug.shm_test_lane
  std::string device;                                // rdma_device; empty: any
  uint64_t lock_bytes = 0;                           // that will be registered; 0: not known yet
  std::function<void(double num_bytes)> registered;  // RmaOptions::registered
};

struct OpenedLane {
  std::shared_ptr<titan::transport::RmaDomain> domain;  // null: there is none
  std::string found;                                    // what there is, or why it is not used
};

// The lane shm-test where the test setting asks for it, and nowhere else; else that of a device;
// else none. FailedPrecondition: what is required or named is not there, or not enough memory may
// be locked; says what there is instead, and the numbers.
StatusOr<OpenedLane> OpenRmaLane(const RmaWanted& wanted);

// REQUIRES: lane.domain.
Lane LaneOf(const titan::transport::RmaDomain& domain);

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_RMA_LANE_H_
