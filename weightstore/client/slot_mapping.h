// SPDX-License-Identifier: Apache-2.0
//
// Memory of slots in this process: maps of a host daemon's memory files, read-only for readers and
// writable for the one writer of a token, and memory of its own for versions that were pulled.
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

  // Memory of this process alone, all of its pages taken; aligned as Map aligns, and in huge pages
  // where the system gives them. ResourceExhausted: no memory, with the bytes.
  static StatusOr<MappedMemory> Own(size_t num_bytes);

  // From here on a write is a fault, or possible again. Internal: the kernel refused.
  Status Protect(bool writable);

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

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_SLOT_MAPPING_H_
