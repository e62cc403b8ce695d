// SPDX-License-Identifier: Apache-2.0
//
// Whole versions from another host: the lane that the lease names, memory of this process, every
// byte verified.
//
//   lease -> memory -> open -> read, 64 MiB at a time -> confirm -> weights digest -> read-only
//
// By one-sided reads where both ends have them, else over TCP, where that is allowed: also for a
// version that cannot be had that way, and, which is logged, from a host that is not reached by it.
// Which lane it was is in the report.
//
// A version that is pulled never touches the memory of another one, so what serves goes on serving,
// whatever becomes of the pull.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_PULLER_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_PULLER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "weightstore/client/remote_lease.h"
#include "weightstore/transport/byte_transport.h"
#include "weightstore/transport/own_memory.h"
#include "weightstore/transport/tcp_transport.h"

namespace titan::weightstore::lanes {

// What became of one Pull by one lane, whether it succeeded or not; for metrics.
struct PullReport {
  Lane lane = Lane::kTcp;
  bool complete = false;   // all of it is here, and what it should be
  uint64_t num_bytes = 0;  // that arrived
  double open_seconds = 0;
  double transfer_seconds = 0;
  double verify_seconds = 0;
  // Answers, or whole versions, that were not what the source had hashed. Not 0: raise the alarm.
  uint64_t corrupt = 0;
  bool found_windows = false;  // of one-sided reads: what came after was by them
};

struct PullerOptions {
  TcpTransportOptions tcp;
  std::shared_ptr<titan::transport::RmaDomain> rma;  // null: TCP alone
  bool require_rdma = false;                         // no TCP; with `rma`
  int hash_threads = 1;                              // at least 1
  bool keeps_spare = true;                           // OwnMemory's, for the next version
  std::function<void(const PullReport&)> report;     // at the end of each, on its thread
  std::function<void(double num_bytes)> memory;      // what was taken, or given back (negative)
};

// Thread-safe.
class Puller final : public VersionPuller {
 public:
  // InvalidArgument, naming the option.
  static StatusOr<std::unique_ptr<Puller>> Create(PullerOptions options);

  const std::vector<Lane>& lanes() const override { return lanes_; }
  StatusOr<std::shared_ptr<const MappedMemory>> Pull(const RemoteLease& lease,
                                                     SteadyTime expires) override;
  // Pulls end with Cancelled, after the part that they are at, and so do later ones.
  void Cancel() { cancelled_ = true; }

 private:
  explicit Puller(PullerOptions options);
  StatusOr<std::shared_ptr<const MappedMemory>> PullBy(const RemoteLease& lease, SteadyTime expires,
                                                       PullReport* report);
  // One try into the memory; fills in the report. DataLoss with kDigestMismatch: worth another.
  Status Fetch(const RemoteLease& lease, const PullGrant& grant, const OwnBuffer& buffer,
               PullReport* report);
  StatusOr<std::unique_ptr<ByteTransport>> TransportOf(const RemoteLease& lease,
                                                       const PullGrant& grant,
                                                       const OwnBuffer& buffer,
                                                       PullReport* report) const;
  Status ReadAll(RemoteSlot& slot, const PullGrant& grant, std::span<std::byte> memory,
                 PullReport* report);
  // The lease's lane, or TCP while its host is not reached by that.
  StatusOr<Lane> LaneFor(const RemoteLease& lease);
  bool MayUseTcp() const { return !options_.require_rdma; }

  const PullerOptions options_;
  const std::vector<Lane> lanes_;
  OwnMemory memory_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;                                // guards what follows
  std::map<std::string, SteadyTime> by_tcp_until_;  // hosts that one-sided reads did not reach
};

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_PULLER_H_
