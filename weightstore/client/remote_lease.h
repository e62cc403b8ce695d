// SPDX-License-Identifier: Apache-2.0
//
// A right to read a committed version from another machine than the one that holds it, and the port
// to what does so (weightstore/transport/puller.h). Values, any thread.
#ifndef TITAN_WEIGHTSTORE_CLIENT_REMOTE_LEASE_H_
#define TITAN_WEIGHTSTORE_CLIENT_REMOTE_LEASE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/slot_mapping.h"

namespace titan::weightstore {

using SteadyTime = std::chrono::steady_clock::time_point;

// The way in which a version's bytes come out of a host's slot. Numbers of the protocol.
enum class Lane : uint8_t {
  kMap = 1,  // same host, mapped
  kTcp = 2,
  kRdma = 3,
  kShmTest = 4,  // the RDMA code over shared memory: tests alone
};
std::string_view NameOf(Lane lane);  // "map", "tcp", "rdma", "shm-test"

// The rdma_device of who leaves the machine's devices alone.
inline constexpr std::string_view kNoDevice = "none";

// By what a reader can get at versions.
struct Reach {
  std::vector<Lane> lanes;  // that it pulls by, dearest first
  std::string host;         // its own, whose slots it maps, by its daemon's name; empty: none
};

// What a leader gives to a reader that pulls. Whoever has the token may read the version until the
// lease ends: it is never logged.
struct RemoteLease {
  Lease lease;         // with kMap this alone counts
  uint64_t epoch = 0;  // fencing token of the writer whose slot it is
  Hash128 token;       // of the system's random source
  std::chrono::milliseconds ttl{0};
  Lane lane = Lane::kTcp;
  std::string address;  // host:port of the host daemon's data plane
};

// Brings the bytes of versions into memory of this process. Thread-safe.
class VersionPuller {
 public:
  VersionPuller() = default;
  VersionPuller(const VersionPuller&) = delete;
  VersionPuller& operator=(const VersionPuller&) = delete;
  virtual ~VersionPuller() = default;

  // That it can read by, dearest first. Never changes.
  virtual const std::vector<Lane>& lanes() const = 0;

  // Blocks until all of it is here and its weights digest is the lease's. Nobody writes to the
  // memory from then on. expires: of the lease, on this process's clock.
  //   Unavailable        the source is gone or silent; said within 2 s
  //   Aborted            the lease or the slot was taken away meanwhile: take a new lease
  //   DataLoss           kDigestMismatch, again when all of it was asked for anew
  //   ResourceExhausted  no memory, with the bytes
  //   Cancelled          this process is shutting down
  //   InvalidArgument    the lease names a lane or an address that this process cannot read by
  virtual StatusOr<std::shared_ptr<const MappedMemory>> Pull(const RemoteLease& lease,
                                                             SteadyTime expires) = 0;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_REMOTE_LEASE_H_
