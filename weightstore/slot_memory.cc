// SPDX-License-Identifier: Apache-2.0
#include "weightstore/slot_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/check.h"

// Since Linux 5.1; absent from older headers.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

// Since Linux 6.1, likewise.
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace titan::weightstore {
namespace {

constexpr uint64_t kAtOnce = 32 * kHugePageBytes;  // taken between two looks at `wanted`
constexpr int kSealsOfSize = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kSealsOfWriters = F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

Status Failed(const std::string& what, uint64_t num_bytes) {
  const std::string message = "slot memory of " + std::to_string(num_bytes) + " bytes: " + what +
                              ": " + std::strerror(errno);
  switch (errno) {
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      return ResourceExhausted(message);
    default:
      return Internal(message);
  }
}

// fallocate of [offset, offset + num_bytes); 0, or -1 and errno.
int TakePages(const UniqueFd& file, uint64_t offset, uint64_t num_bytes) {
  int result;
  do {
    result = ::fallocate(file.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(num_bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

// Takes huge pages for as much of the empty file as it gets; how many bytes. MADV_COLLAPSE makes
// them whatever the system's setting for shared memory, but `deny`, and out of one page each.
// Matrices that stream through the kernels come up to half again as fast out of them.
uint64_t TakeHugePages(const UniqueFd& file, uint64_t num_bytes, const SlotMemory::Wanted& wanted) {
  if (num_bytes < kHugePageBytes) return 0;
  const auto map = MappedMemory::MapUnchecked(file.get(), num_bytes, /*writable=*/true,
                                              MappedMemory::Tables::kOnAccess);
  if (!map.ok()) return 0;
  // Each collapse asks every core to hand in its pages first, so that few are made.
  const uint64_t whole = num_bytes / kHugePageBytes * kHugePageBytes;
  uint64_t taken = 0;
  for (uint64_t at = 0; at < whole && (!wanted || wanted()); at += kAtOnce) {
    const uint64_t length = std::min(kAtOnce, whole - at);
    for (uint64_t page = at; page < at + length; page += kHugePageBytes) {
      if (TakePages(file, page, 1) != 0) return taken;
    }
    if (::madvise(map->data() + at, length, MADV_COLLAPSE) == 0) {
      taken += length;
    } else if (errno == EINVAL || errno == ENOMEM) {
      break;  // there are none, or none any more
    }
  }
  return taken;
}

// A memory file of that size with all its pages, not to be resized any more.
StatusOr<UniqueFd> MakeFile(const std::string& name, uint64_t num_bytes,
                            const SlotMemory::Wanted& wanted = {}, uint64_t* huge_bytes = nullptr) {
  UniqueFd file(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Failed("memfd_create", num_bytes);
  if (::ftruncate(file.get(), static_cast<off_t>(num_bytes)) != 0) {
    return Failed("sizing", num_bytes);
  }
  if (huge_bytes != nullptr) *huge_bytes = TakeHugePages(file, num_bytes, wanted);
  for (uint64_t at = 0; at < num_bytes; at += kAtOnce) {
    if (wanted && !wanted()) return Cancelled("slot memory: not wanted any more");
    if (TakePages(file, at, std::min(kAtOnce, num_bytes - at)) != 0) {
      return Failed("taking its pages", num_bytes);
    }
  }
  if (::fcntl(file.get(), F_ADD_SEALS, kSealsOfSize) != 0) return Failed("sealing", num_bytes);
  return file;
}

StatusOr<UniqueFd> ReopenReadOnly(const UniqueFd& file) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  UniqueFd readable(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!readable.valid()) return Failed("reopening " + path, 0);
  return readable;
}

Status Seal(const UniqueFd& file) {
  if (::fcntl(file.get(), F_ADD_SEALS, kSealsOfWriters) != 0) {
    return Internal(std::string("sealing a slot against new writers: ") + std::strerror(errno));
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<SlotMemory>> SlotMemory::Create(
    uint64_t slot_id, uint64_t num_bytes, Writer writer, const Wanted& wanted,
    std::shared_ptr<titan::transport::RmaDomain> rma) {
  std::unique_ptr<SlotMemory> slot(new SlotMemory(slot_id, num_bytes, writer));
  slot->rma_ = std::move(rma);
  const std::string name = "titan-slot-" + std::to_string(slot_id);
  TITAN_ASSIGN_OR_RETURN(slot->file_, MakeFile(name, num_bytes, wanted, &slot->huge_bytes_));
  TITAN_ASSIGN_OR_RETURN(slot->readable_, ReopenReadOnly(slot->file_));
  TITAN_ASSIGN_OR_RETURN(const UniqueFd header, slot->MakeHeader(name));
  const bool keeps_writing = writer == Writer::kDaemon;
  // A device registers only what this process might write to.
  TITAN_ASSIGN_OR_RETURN(MappedMemory map, MappedMemory::Map(slot->file_.get(), num_bytes,
                                                             keeps_writing || slot->rma_ != nullptr,
                                                             MappedMemory::Tables::kOnAccess));
  slot->map_ = std::make_shared<MappedMemory>(std::move(map));
  if (slot->rma_ != nullptr) TITAN_RETURN_IF_ERROR(slot->OpenWindows(header));
  TITAN_RETURN_IF_ERROR(slot->SealAgainstWriters(header));
  if (keeps_writing) TITAN_RETURN_IF_ERROR(slot->SealWriters());
  return slot;
}

StatusOr<std::unique_ptr<SlotMemory>> SlotMemory::Adopt(uint64_t slot_id, uint64_t num_bytes,
                                                        const UniqueFd& bytes) {
  TITAN_RETURN_IF_ERROR(CheckSealed(bytes, num_bytes));
  std::unique_ptr<SlotMemory> slot(new SlotMemory(slot_id, num_bytes, Writer::kNobody));
  TITAN_ASSIGN_OR_RETURN(slot->readable_, ReopenReadOnly(bytes));
  const std::string name = "titan-slot-" + std::to_string(slot_id);
  TITAN_ASSIGN_OR_RETURN(const UniqueFd header, slot->MakeHeader(name));
  TITAN_RETURN_IF_ERROR(Seal(header));
  TITAN_ASSIGN_OR_RETURN(MappedMemory map,
                         MappedMemory::Map(slot->readable_.get(), num_bytes, /*writable=*/false,
                                           MappedMemory::Tables::kOnAccess));
  slot->map_ = std::make_shared<MappedMemory>(std::move(map));
  return slot;
}

Status SlotMemory::CheckSealed(const UniqueFd& bytes, uint64_t num_bytes) {
  const int seals = ::fcntl(bytes.get(), F_GET_SEALS);
  if (seals < 0) return FailedPrecondition("the offered descriptor is no memory file");
  if ((seals & kSealsOfSize) != kSealsOfSize) {
    return FailedPrecondition("the offered slot is not sealed against resizing");
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0) {
    return FailedPrecondition("the offered slot is not sealed against writing");
  }
  struct stat file = {};
  if (::fstat(bytes.get(), &file) != 0 || static_cast<uint64_t>(file.st_size) != num_bytes) {
    return InvalidArgument("the offered slot has " + std::to_string(file.st_size) + " bytes, not " +
                           std::to_string(num_bytes) + " as its reader says");
  }
  // A page that is missing could not be had later: a fault.
  if (static_cast<uint64_t>(file.st_blocks) * 512 < num_bytes) {
    return FailedPrecondition("the offered slot has pages that were never taken");
  }
  return OkStatus();
}

StatusOr<UniqueFd> SlotMemory::MakeHeader(const std::string& name) {
  TITAN_ASSIGN_OR_RETURN(UniqueFd header, MakeFile(name + "-header", kSlotHeaderBytes));
  TITAN_ASSIGN_OR_RETURN(header_readable_, ReopenReadOnly(header));
  TITAN_ASSIGN_OR_RETURN(MappedMemory map,
                         MappedMemory::Map(header.get(), kSlotHeaderBytes, /*writable=*/true));
  header_map_ = std::make_shared<MappedMemory>(std::move(map));
  return header;
}

Status SlotMemory::OpenWindows(const UniqueFd& header) {
  const auto share = [this](const UniqueFd& file, const std::shared_ptr<MappedMemory>& map) {
    return rma_->Share(file.get(), {map->data(), map->size()}, map);
  };
  TITAN_ASSIGN_OR_RETURN(window_, share(file_, map_));
  TITAN_ASSIGN_OR_RETURN(header_window_, share(header, header_map_));
  source_ = {rma_->address(), window_.key(), header_window_.key(), slot_id_};
  return OkStatus();
}

Status SlotMemory::SealAgainstWriters(const UniqueFd& file) const {
  if (rma_ != nullptr && rma_->lane() == titan::transport::RmaLane::kShmTest) return OkStatus();
  return Seal(file);
}

Status SlotMemory::SealWriters() { return SealAgainstWriters(file_); }

std::span<std::byte> SlotMemory::writable_bytes() {
  TITAN_CHECK(writer_ == Writer::kDaemon);
  return {map_->data(), map_->size()};
}

void SlotMemory::WriteHeader(const SlotHeaderFields& fields) {
  SlotHeaderPage(header_map_->data()).Write(fields);
}

}  // namespace titan::weightstore
