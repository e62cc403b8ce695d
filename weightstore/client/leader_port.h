// SPDX-License-Identifier: Apache-2.0
//
// The weight store's leader as its clients see it. Services implement it with gRPC, tests by a
// call.
#ifndef TITAN_WEIGHTSTORE_CLIENT_LEADER_PORT_H_
#define TITAN_WEIGHTSTORE_CLIENT_LEADER_PORT_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/manifest.h"
#include "weightstore/client/remote_lease.h"
#include "weightstore/client/slot_mapping.h"

namespace titan::weightstore {

struct Registration {
  uint64_t epoch = 0;  // fencing token of every later call
  uint32_t ring_slots = 0;
};

struct BeginResult {
  uint64_t grant = 0;                      // of the open slot
  std::optional<Hash128> recorded_digest;  // set: the version has a record, no slot is open
};

// Calls block until answered or until the implementation's deadline. Thread-safe. Common codes:
// Aborted = the epoch is superseded; Unavailable = the leader is down, retry; InvalidArgument =
// names the field; FailedPrecondition = not in this state, or divergence (another digest for a
// recorded version).
class LeaderPort {
 public:
  LeaderPort() = default;
  LeaderPort(const LeaderPort&) = delete;
  LeaderPort& operator=(const LeaderPort&) = delete;
  virtual ~LeaderPort() = default;

  // The ring has max_age + 3 slots, and there are 1 to 8 for evaluation. host: the name of the host
  // daemon that has them, as its socket tells it; empty: the only one that there is.
  // ResourceExhausted, with the bytes: they do not fit into memory. Unavailable: that host is not
  // attached.
  virtual StatusOr<Registration> RegisterTrainer(const std::string& request_id,
                                                 const std::string& run_id,
                                                 const Manifest& manifest, uint32_t max_age,
                                                 uint32_t evaluation_slots,
                                                 const std::string& host) = 0;
  // ResourceExhausted, naming the lease that blocks: the ring stayed full for `wait`.
  virtual StatusOr<BeginResult> BeginVersion(const std::string& run_id, uint64_t epoch,
                                             uint64_t version, std::chrono::milliseconds wait) = 0;
  // DataLoss: the daemon's digest of the slot differs; the version is aborted and may be begun
  // again.
  virtual Status PutDone(const std::string& run_id, uint64_t epoch, uint64_t version,
                         uint64_t grant, const Hash128& digest) = 0;
  // Returns the time of the commit in unix milliseconds. After Unavailable: call again.
  virtual StatusOr<int64_t> CommitVersion(const std::string& run_id, uint64_t epoch,
                                          uint64_t version, const Hash128& digest,
                                          const std::string& plan_digest, uint64_t train_step) = 0;
  // NotFound: no such version. FailedPrecondition: not committed yet, or retired. Unavailable:
  // LOST.
  virtual StatusOr<Lease> AcquireLease(const std::string& holder, const std::string& run_id,
                                       uint64_t version, bool evaluation) = 0;
  // The same for a holder that pulls what its own host does not have: the answer's lane is kMap if
  // that has the version, else the first of its lanes that the version's host serves.
  // FailedPrecondition: that serves none, and what to set.
  virtual StatusOr<RemoteLease> AcquireRemoteLease(const std::string& holder,
                                                   const std::string& run_id, uint64_t version,
                                                   bool evaluation, const Reach& reach) = 0;
  // OK also for a lease that has ended.
  virtual Status ReleaseLease(uint64_t lease_id) = 0;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_LEADER_PORT_H_
