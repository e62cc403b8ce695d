// SPDX-License-Identifier: Apache-2.0
//
// Slots mapped into this process: read-only for readers, writable for the one writer of a token.
#ifndef TITAN_WEIGHTSTORE_CLIENT_SLOT_MAPPING_H_
#define TITAN_WEIGHTSTORE_CLIENT_SLOT_MAPPING_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/manifest.h"
#include "weightstore/client/slot_header.h"
#include "weightstore/client/unix_socket.h"

namespace titan::weightstore {

// Operations on a host daemon's socket end after this.
inline constexpr std::chrono::milliseconds kSocketTimeout{10'000};

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// An mmap; unmaps at the end. Movable.
class MappedMemory {
 public:
  MappedMemory() = default;
  MappedMemory(void* data, size_t num_bytes) : data_(data), num_bytes_(num_bytes) {}
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  // When the page tables of a map are filled. The pages themselves are the file's, taken when it
  // was made, so that it is a matter of speed alone.
  enum class Tables {
    kNow,       // by whoever is about to use all of it, and must not wait for it later
    kOnAccess,  // by whoever may never look
  };

  // Maps the whole of a memory file, at a multiple of kHugePageBytes where the file has as many:
  // its huge pages, if it has any, are then mapped as such. InvalidArgument: it has another size.
  // ResourceExhausted: no memory. FailedPrecondition: it could shrink under the map (no
  // F_SEAL_SHRINK).
  static StatusOr<MappedMemory> Map(int fd, size_t num_bytes, bool writable,
                                    Tables tables = Tables::kNow);
  // The same without a look at the file's size and seals. For its maker.
  static StatusOr<MappedMemory> MapUnchecked(int fd, size_t num_bytes, bool writable,
                                             Tables tables = Tables::kNow);

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return num_bytes_; }

 private:
  void* data_ = nullptr;
  size_t num_bytes_ = 0;
};

// A right to read one committed version.
struct Lease {
  uint64_t lease_id = 0;
  uint64_t grant = 0;
  std::string run_id;
  uint64_t version = 0;
  Hash128 digest;
  // Shared by all slots of a run that a process maps; never changes.
  std::shared_ptr<const Manifest> manifest;
};

// A version that this process reads without a copy. The lease lives as long as this object: the
// host daemon sees the connection's end, also when the process is killed. Not thread-safe, except
// bytes and HeaderUnchanged, which any thread may call. Movable.
class MappedSlot {
 public:
  MappedSlot() = default;
  MappedSlot(MappedSlot&&) noexcept = default;
  MappedSlot& operator=(MappedSlot&&) noexcept;
  ~MappedSlot() { Unmap(); }

  // Presents the lease at the host daemon's socket. Aborted: the lease has ended or its grant
  // number is stale. DataLoss: the header is not that of the lease (another version or digest).
  // Unavailable: no daemon. ResourceExhausted: no memory or descriptors.
  static StatusOr<MappedSlot> Map(const std::string& socket_path, Lease lease,
                                  MappedMemory::Tables tables = MappedMemory::Tables::kNow);

  bool mapped() const { return slot_.data() != nullptr; }
  std::span<const std::byte> bytes() const { return {slot_.data(), slot_.size()}; }
  const Lease& lease() const { return lease_; }
  uint64_t version() const { return lease_.version; }
  const Manifest& manifest() const { return *lease_.manifest; }

  // Call after the bytes were used and before anything made from them leaves the process. False:
  // the slot was taken from its readers; what was made since the last true is to be discarded.
  bool HeaderUnchanged() const;

  // Unmaps and closes; the daemon ends the lease. The bytes must not be used any more.
  void Unmap();

 private:
  Lease lease_;
  UniqueFd connection_;
  MappedMemory slot_;
  MappedMemory header_;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_SLOT_MAPPING_H_
