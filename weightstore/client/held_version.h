// SPDX-License-Identifier: Apache-2.0
//
// A version that this process can run: a slot of its host's store, mapped, or bytes that were
// pulled into memory of its own.
#ifndef TITAN_WEIGHTSTORE_CLIENT_HELD_VERSION_H_
#define TITAN_WEIGHTSTORE_CLIENT_HELD_VERSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>

#include "core/base/status.h"
#include "weightstore/client/manifest.h"
#include "weightstore/client/slot_mapping.h"
#include "weightstore/client/unix_socket.h"

namespace titan::weightstore {

// Mapped: the lease lives as long as this object; the host daemon sees the connection's end, also
// when the process is killed. Pulled: the lease has ended, the bytes are nobody else's. Not
// thread-safe, except bytes, lease and HeaderUnchanged, which any thread may call, also during Tie.
// Movable.
//
// A daemon that dies takes nothing away: the memory stays as it was, for nobody can write to it any
// more, and so does the header page. Its successor knows the bytes again once they were offered to
// it and a new lease ties them to it (Subscriber::Renew).
class HeldVersion {
 public:
  HeldVersion() = default;
  HeldVersion(HeldVersion&&) noexcept = default;
  HeldVersion& operator=(HeldVersion&&) noexcept;
  ~HeldVersion() { Drop(); }

  // Presents the lease at the host daemon's socket. Aborted: the lease has ended or its grant
  // number is stale. DataLoss: the header is not that of the lease (another version or digest).
  // Unavailable: no daemon, or it has not answered in 1.5 s. ResourceExhausted: no memory or
  // descriptors.
  static StatusOr<HeldVersion> Map(const std::string& socket_path, Lease lease,
                                   MappedMemory::Tables tables = MappedMemory::Tables::kNow);
  // REQUIRES: memory holds the lease's version, verified, and nobody writes to it.
  static HeldVersion OfPulled(Lease lease, std::shared_ptr<const MappedMemory> memory);

  // What Drop leaves holds nothing.
  bool held() const { return !bytes().empty(); }
  // Shared memory of the host; else the bytes are this process's own.
  bool mapped() const { return slot_.data() != nullptr; }
  std::span<const std::byte> bytes() const {
    const MappedMemory& memory = pulled_ != nullptr ? *pulled_ : slot_;
    return {memory.data(), memory.size()};
  }
  // The one that holds it now; run, version, digest and manifest stay the same.
  Lease lease() const;
  uint64_t version() const { return lease_.version; }
  const Manifest& manifest() const { return *lease_.manifest; }

  // Call after the bytes were used and before anything made from them leaves the process. False:
  // the slot was taken from its readers; what was made since the last true is to be discarded.
  // Always true of pulled bytes.
  bool HeaderUnchanged() const;

  // It is mapped, and the daemon that gave it out has closed its end: it died or ended.
  bool orphaned() const;
  // Shows the memory to the daemon that listens there now, and waits until it has taken it into its
  // tables, so that the version is COMMITTED again. FailedPrecondition, NotFound, InvalidArgument,
  // DataLoss: it refuses, for good, with the reason. Unavailable, ResourceExhausted,
  // DeadlineExceeded: not now. Cancelled: a stop was requested. REQUIRES: mapped().
  Status Offer(const std::string& socket_path, std::stop_token stop = {}) const;
  // From here on that lease holds it, and its slot's header page is the one that is read; the bytes
  // stay where they are. Codes of Map; DataLoss, too: the lease is for another version or digest.
  // REQUIRES: mapped().
  Status Tie(const std::string& socket_path, const Lease& lease);

  // Unmaps and closes, so that the daemon ends the lease, or gives the memory back. The bytes must
  // not be used any more.
  void Drop();

 private:
  // To a daemon.
  struct DaemonTie {
    uint64_t lease_id = 0;
    uint64_t grant = 0;
    UniqueFd connection;
    MappedMemory header;
  };
  struct GuardedTie {
    std::mutex mutex;
    DaemonTie tie;  // guarded
  };

  // answer: of the slot, its first descriptor.
  static StatusOr<DaemonTie> Present(const std::string& socket_path, const Lease& lease,
                                     SocketAnswer* answer);

  Lease lease_;
  UniqueFd slot_file_;
  MappedMemory slot_;
  std::unique_ptr<GuardedTie> tie_;             // null: not mapped
  std::shared_ptr<const MappedMemory> pulled_;  // instead of the above
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_HELD_VERSION_H_
