// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/slot_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

// Since Linux 5.14; absent from older headers.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

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

StatusOr<MappedMemory> MappedMemory::Own(size_t num_bytes) {
  const auto failed = [num_bytes](const char* what) {
    return ResourceExhausted(std::to_string(num_bytes) + " bytes of memory: " + what + ": " +
                             std::strerror(errno));
  };
  void* data = num_bytes == 0
                   ? MAP_FAILED
                   : MapAligned(-1, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (data == MAP_FAILED) return failed("mapping");
  MappedMemory memory(data, num_bytes);
  ::madvise(data, num_bytes, MADV_HUGEPAGE);  // refused where the system has none: small ones, then
  ::madvise(data, num_bytes, MADV_DONTFORK);
  if (::madvise(data, num_bytes, MADV_POPULATE_WRITE) == 0) return memory;
  if (errno != EINVAL) return failed("taking its pages");
  auto* bytes = static_cast<volatile std::byte*>(data);  // a kernel before 5.14
  for (size_t at = 0; at < num_bytes; at += kPageBytes) bytes[at] = std::byte{0};
  return memory;
}

Status MappedMemory::Protect(bool writable) {
  if (::mprotect(data_, num_bytes_, writable ? PROT_READ | PROT_WRITE : PROT_READ) == 0) {
    return OkStatus();
  }
  return Internal(std::string("mprotect of own memory: ") + std::strerror(errno));
}

}  // namespace titan::weightstore
