// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/slot_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace titan::weightstore {
namespace {

constexpr size_t kPageBytes = 4096;

uintptr_t RoundUp(uintptr_t at, size_t multiple) {
  return (at + multiple - 1) / multiple * multiple;
}

// mmap of the whole file at a multiple of kHugePageBytes; MAP_FAILED and errno as of mmap.
void* MapAligned(int fd, size_t num_bytes, int protection, int flags) {
  const size_t reserved_bytes = RoundUp(num_bytes, kPageBytes) + kHugePageBytes;
  void* reserved = ::mmap(nullptr, reserved_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto first = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t begin = RoundUp(first, kHugePageBytes), last = first + reserved_bytes;
  const uintptr_t end = begin + RoundUp(num_bytes, kPageBytes);
  void* data =
      ::mmap(reinterpret_cast<void*>(begin), num_bytes, protection, flags | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    ::munmap(reserved, reserved_bytes);
    errno = error;
    return MAP_FAILED;
  }
  if (begin > first) ::munmap(reserved, begin - first);
  if (last > end) ::munmap(reinterpret_cast<void*>(end), last - end);
  return data;
}

}  // namespace

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) ::munmap(data_, num_bytes_);
}

StatusOr<MappedMemory> MappedMemory::Map(int fd, size_t num_bytes, bool writable, Tables tables) {
  struct stat file = {};
  if (::fstat(fd, &file) != 0 || static_cast<uint64_t>(file.st_size) != num_bytes ||
      num_bytes == 0) {
    return InvalidArgument("slot memory has " + std::to_string(file.st_size) + " bytes, expected " +
                           std::to_string(num_bytes));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return FailedPrecondition("slot memory is not sealed against shrinking");
  }
  return MapUnchecked(fd, num_bytes, writable, tables);
}

StatusOr<MappedMemory> MappedMemory::MapUnchecked(int fd, size_t num_bytes, bool writable,
                                                  Tables tables) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const int flags = MAP_SHARED | (tables == Tables::kNow ? MAP_POPULATE : 0);
  void* data = num_bytes < kHugePageBytes ? ::mmap(nullptr, num_bytes, protection, flags, fd, 0)
                                          : MapAligned(fd, num_bytes, protection, flags);
  if (data == MAP_FAILED) {
    const std::string message =
        "mapping " + std::to_string(num_bytes) + " bytes: " + std::strerror(errno);
    return errno == ENOMEM ? ResourceExhausted(message) : FailedPrecondition(message);
  }
  // A child of the process would share the map without holding a lease.
  ::madvise(data, num_bytes, MADV_DONTFORK);
  return MappedMemory(data, num_bytes);
}

MappedSlot& MappedSlot::operator=(MappedSlot&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  lease_ = std::move(other.lease_);
  connection_ = std::move(other.connection_);
  slot_ = std::move(other.slot_);
  header_ = std::move(other.header_);
  return *this;
}

StatusOr<MappedSlot> MappedSlot::Map(const std::string& socket_path, Lease lease,
                                     MappedMemory::Tables tables) {
  MappedSlot mapped;
  TITAN_ASSIGN_OR_RETURN(mapped.connection_, ConnectUnix(socket_path, kSocketTimeout));
  TITAN_ASSIGN_OR_RETURN(
      SocketAnswer answer,
      Call(mapped.connection_.get(),
           {.kind = SocketRequestKind::kMapLease, .id = lease.lease_id, .grant = lease.grant}));
  if (answer.fds.size() != 2) return DataLoss("weight store's socket: two descriptors expected");
  if (answer.slot_bytes < lease.manifest->slot_bytes) {
    return DataLoss("the slot is smaller than the manifest says");
  }
  TITAN_ASSIGN_OR_RETURN(mapped.slot_, MappedMemory::Map(answer.fds[0].get(), answer.slot_bytes,
                                                         /*writable=*/false, tables));
  TITAN_ASSIGN_OR_RETURN(mapped.header_, MappedMemory::Map(answer.fds[1].get(), kSlotHeaderBytes,
                                                           /*writable=*/false));
  SlotHeaderFields header;
  if (!SlotHeaderPage(mapped.header_.data()).Read(&header) || header.grant != lease.grant) {
    return Aborted("lease " + std::to_string(lease.lease_id) + ": its grant number is stale");
  }
  if (header.version != lease.version || header.digest != lease.digest) {
    return DataLoss("the slot holds version " + std::to_string(header.version) + " with digest " +
                    ToHex(header.digest) + ", the lease is for version " +
                    std::to_string(lease.version) + " with digest " + ToHex(lease.digest));
  }
  mapped.lease_ = std::move(lease);
  return mapped;
}

bool MappedSlot::HeaderUnchanged() const {
  return mapped() && SlotHeaderPage(header_.data()).GrantAfterReads() == lease_.grant;
}

void MappedSlot::Unmap() {
  slot_ = MappedMemory();
  header_ = MappedMemory();
  connection_.Close();
}

}  // namespace titan::weightstore
