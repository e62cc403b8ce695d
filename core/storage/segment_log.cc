// SPDX-License-Identifier: Apache-2.0
#include "core/storage/segment_log.h"

#include <dirent.h>
#include <fcntl.h>
#include <nmmintrin.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/base/durable_file.h"

namespace titan::storage {
namespace {

constexpr size_t kHeaderBytes = 8;
constexpr size_t kMaxPayload = size_t{1} << 30;

Status DiskError(int error, const std::string& what) {
  const std::string text = what + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT) return ResourceExhausted(text);
  return Unavailable(text);
}

// Reads exactly `size` bytes; false at the end of the file or on an error.
bool ReadAt(int fd, void* out, size_t size, uint64_t offset) {
  auto* bytes = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = pread(fd, bytes, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint64_t crc = 0xffffffffu;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto narrow = static_cast<uint32_t>(crc);
  for (; i < bytes.size(); ++i) {
    narrow = _mm_crc32_u8(narrow, static_cast<unsigned char>(bytes[i]));
  }
  return ~narrow;
}

StatusOr<std::unique_ptr<SegmentLog>> SegmentLog::Open(const std::string& folder,
                                                       SegmentLogOptions options) {
  if (mkdir(folder.c_str(), 0700) == 0) {
    TITAN_RETURN_IF_ERROR(SyncFolder(std::filesystem::path(folder).parent_path().string()));
  } else if (errno != EEXIST) {
    return DiskError(errno, "cannot make folder " + folder);
  }
  DIR* listing = opendir(folder.c_str());
  if (listing == nullptr) return DiskError(errno, "cannot list folder " + folder);
  uint32_t last = 0;
  while (const dirent* entry = readdir(listing)) {
    unsigned number = 0;
    char tail = 0;
    if (std::sscanf(entry->d_name, "%8u.seg%c", &number, &tail) == 1) last = std::max(last, number);
  }
  closedir(listing);
  return std::unique_ptr<SegmentLog>(new SegmentLog(folder, options, last + 1));
}

SegmentLog::~SegmentLog() {
  if (fd_ >= 0) close(fd_);
}

std::string SegmentLog::PathOf(uint32_t segment) const {
  char name[32];
  std::snprintf(name, sizeof(name), "/%08u.seg", segment);
  return folder_ + name;
}

Status SegmentLog::Fail(int error, const std::string& what) {
  failure_ = DiskError(error, what);
  return failure_;
}

Status SegmentLog::StartSegment() {
  if (fd_ >= 0) {
    TITAN_RETURN_IF_ERROR(Sync());
    close(fd_);
    fd_ = -1;
  }
  const std::string path = PathOf(next_segment_);
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd_ < 0) return Fail(errno, "cannot make " + path);
  const Status synced = SyncFolder(folder_);
  if (!synced.ok()) {
    failure_ = synced;
    return synced;
  }
  segment_ = next_segment_++;
  offset_ = 0;
  return OkStatus();
}

StatusOr<SegmentPlace> SegmentLog::Append(std::string_view payload) {
  if (!failure_.ok()) return Annotate(failure_, "the segment log failed before");
  if (payload.size() >= kMaxPayload)
    return InvalidArgument("segment log: payload of 1 GiB or more");
  if (fd_ < 0 || offset_ >= options_.max_segment_bytes) TITAN_RETURN_IF_ERROR(StartSegment());
  SegmentPlace place;
  place.segment = segment_;
  place.offset = offset_;
  place.length = static_cast<uint32_t>(payload.size());
  place.crc32c = Crc32c(payload);
  std::array<char, kHeaderBytes> header;
  std::memcpy(header.data(), &place.length, 4);
  std::memcpy(header.data() + 4, &place.crc32c, 4);
  dirty_ = true;
  size_t done = 0;
  while (done < kHeaderBytes + payload.size()) {
    iovec parts[2];
    int num = 0;
    if (done < kHeaderBytes) parts[num++] = {header.data() + done, kHeaderBytes - done};
    const size_t at = done < kHeaderBytes ? 0 : done - kHeaderBytes;
    if (at < payload.size()) {
      parts[num++] = {const_cast<char*>(payload.data()) + at, payload.size() - at};
    }
    const ssize_t wrote = writev(fd_, parts, num);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Fail(errno, "cannot write " + PathOf(segment_));
    done += static_cast<size_t>(wrote);
  }
  offset_ += done;
  return place;
}

Status SegmentLog::Sync() {
  if (!failure_.ok()) return Annotate(failure_, "the segment log failed before");
  if (!dirty_) return OkStatus();
  if (fdatasync(fd_) != 0) return Fail(errno, "cannot sync " + PathOf(segment_));
  dirty_ = false;
  return OkStatus();
}

StatusOr<std::string> SegmentLog::Read(const SegmentPlace& place) const {
  const std::string path = PathOf(place.segment);
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT) return NotFound("no segment file " + path);
    return DiskError(errno, "cannot open " + path);
  }
  const std::string where = path + " at " + std::to_string(place.offset);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return DiskError(errno, "cannot read " + path);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (place.offset > size || size - place.offset < kHeaderBytes + uint64_t{place.length}) {
    return DataLoss(where + ": the file ends before the record does");
  }
  std::array<char, kHeaderBytes> header;
  std::string payload(place.length, '\0');
  if (!ReadAt(fd.get(), header.data(), kHeaderBytes, place.offset) ||
      !ReadAt(fd.get(), payload.data(), payload.size(), place.offset + kHeaderBytes)) {
    return DiskError(errno, "cannot read " + where);
  }
  uint32_t length = 0, crc = 0;
  std::memcpy(&length, header.data(), 4);
  std::memcpy(&crc, header.data() + 4, 4);
  if (length != place.length || crc != place.crc32c) {
    return DataLoss(where + ": the record's header is not what was written");
  }
  if (Crc32c(payload) != place.crc32c) {
    return DataLoss(where + ": the record's bytes are not what was written");
  }
  return payload;
}

}  // namespace titan::storage
