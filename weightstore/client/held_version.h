// SPDX-License-Identifier: Apache-2.0
//
// A version that this process can run: a slot of its host's store, mapped, or bytes that were
// pulled into memory of its own.
#ifndef TITAN_WEIGHTSTORE_CLIENT_HELD_VERSION_H_
#define TITAN_WEIGHTSTORE_CLIENT_HELD_VERSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/status.h"
#include "weightstore/client/manifest.h"
#include "weightstore/client/slot_mapping.h"
#include "weightstore/client/unix_socket.h"

namespace titan::weightstore {

// Mapped: the lease lives as long as this object; the host daemon sees the connection's end, also
// when the process is killed. Pulled: the lease has ended, the bytes are nobody else's. Not
// thread-safe, except bytes and HeaderUnchanged, which any thread may call. Movable.
class HeldVersion {
 public:
  HeldVersion() = default;
  HeldVersion(HeldVersion&&) noexcept = default;
  HeldVersion& operator=(HeldVersion&&) noexcept;
  ~HeldVersion() { Drop(); }

  // Presents the lease at the host daemon's socket. Aborted: the lease has ended or its grant
  // number is stale. DataLoss: the header is not that of the lease (another version or digest).
  // Unavailable: no daemon. ResourceExhausted: no memory or descriptors.
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
  const Lease& lease() const { return lease_; }
  uint64_t version() const { return lease_.version; }
  const Manifest& manifest() const { return *lease_.manifest; }

  // Call after the bytes were used and before anything made from them leaves the process. False:
  // the slot was taken from its readers; what was made since the last true is to be discarded.
  // Always true of pulled bytes.
  bool HeaderUnchanged() const;

  // Unmaps and closes, so that the daemon ends the lease, or gives the memory back. The bytes must
  // not be used any more.
  void Drop();

 private:
  Lease lease_;
  UniqueFd connection_;
  MappedMemory slot_;
  MappedMemory header_;
  std::shared_ptr<const MappedMemory> pulled_;  // instead of the above
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_HELD_VERSION_H_
