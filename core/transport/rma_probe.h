// SPDX-License-Identifier: Apache-2.0
//
// What this machine has for one-sided reads, asked before anything is opened. Any thread.
#ifndef TITAN_CORE_TRANSPORT_RMA_PROBE_H_
#define TITAN_CORE_TRANSPORT_RMA_PROBE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace titan::transport {

// Transports of UCX with their devices, as "rc_mlx5/mlx5_0:1", whatever UCX_TLS says.
struct FoundTransports {
  std::vector<std::string> rdma;    // devices that read memory of others by themselves (rc, dc)
  std::vector<std::string> others;  // sockets, shared memory, and what reads by messages
};
// FailedPrecondition: UCX does not say.
StatusOr<FoundTransports> FindTransports();

// Memory that this process may lock, which registering with a device does.
struct LockLimit {
  uint64_t bytes = 0;      // RLIMIT_MEMLOCK
  bool unlimited = false;  // the limit is none, or this process has CAP_IPC_LOCK
};
LockLimit ReadLockLimit();
// ResourceExhausted, with both numbers: less than `bytes` may be locked. what: "the slots".
Status CheckLockable(uint64_t bytes, const std::string& what, const LockLimit& limit);

}  // namespace titan::transport

#endif  // TITAN_CORE_TRANSPORT_RMA_PROBE_H_
