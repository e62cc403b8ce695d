// SPDX-License-Identifier: Apache-2.0
#include "weightstore/blob_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/base/durable_file.h"
#include "weightstore/client/slot_mapping.h"

namespace titan::weightstore {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial";
constexpr size_t kMaxReadings = 64;  // more than read at a time; the rest was left halfway

// Nothing of an empty file.
StatusOr<MappedMemory> MapWhole(const UniqueFd& fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return SystemError(errno, "cannot look at", path);
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedMemory();
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError(errno, "cannot map", path);
  return MappedMemory(data, size);
}

// Has the system read the file: what the disk cannot give is an error here, and would be a signal
// that ends the process where the map is read.
Status ReadThrough(const UniqueFd& fd, const std::string& path) {
  std::string part(1 << 20, '\0');
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(fd.get(), part.data(), part.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, "cannot read", path);
    if (got == 0) return OkStatus();
    at += got;
  }
}

}  // namespace

StatusOr<std::unique_ptr<BlobFiles>> BlobFiles::Open(std::string folder, OnDamage on_damage) {
  if (::mkdir(folder.c_str(), 0777) == 0) {
    TITAN_RETURN_IF_ERROR(SyncFolder(fs::path(folder).parent_path().string()));
  } else if (errno != EEXIST) {
    return SystemError(errno, "cannot make", folder);
  }
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->path().filename().string().ends_with(kPartial)) fs::remove(at->path(), ignored);
  }
  if (error) return SystemError(error.value(), "cannot list", folder);
  return std::unique_ptr<BlobFiles>(new BlobFiles(std::move(folder), std::move(on_damage)));
}

BlobFiles::Writer::Writer(Writer&& other) noexcept
    : files_(other.files_),
      fd_(std::move(other.fd_)),
      path_(std::exchange(other.path_, "")),
      digest_(other.digest_) {}

BlobFiles::Writer::~Writer() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

StatusOr<BlobFiles::Writer> BlobFiles::Create() const {
  TITAN_RETURN_IF_ERROR(SyncFailure());
  static std::atomic<uint64_t> next{1};
  const std::string path = folder_ + "/" + std::to_string(next++) + std::string(kPartial);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd.get() < 0) return SystemError(errno, "cannot create", path);
  return Writer(*this, std::move(fd), path);
}

Status BlobFiles::Writer::Append(std::span<const std::byte> bytes) {
  return WriteAll(fd_.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path_);
}

StatusOr<Hash128> BlobFiles::Writer::Seal(
    const std::function<void(std::span<const std::byte>)>& visit) {
  if (::fdatasync(fd_.get()) != 0) return SystemError(errno, "cannot sync", path_);
  TITAN_ASSIGN_OR_RETURN(const MappedMemory map, MapWhole(fd_, path_));
  digest_ = Hash128Of(map.data(), map.size(), 0);
  if (visit) visit({map.data(), map.size()});
  return digest_;
}

Status BlobFiles::Writer::Publish() {
  if (::rename(path_.c_str(), files_->PathOf(digest_).c_str()) != 0) {
    return SystemError(errno, "cannot rename", path_);
  }
  path_.clear();
  return OkStatus();
}

Status BlobFiles::Sync() {
  // One at a time: the system tells a failure once, and a later sync may succeed without the names.
  const std::lock_guard one_at_a_time(syncing_);
  TITAN_RETURN_IF_ERROR(SyncFailure());
  const Status synced = SyncFolder(folder_);
  if (synced.ok()) return synced;
  const std::lock_guard lock(mutex_);
  sync_failure_ = Annotate(synced, "nothing is kept on disk until the weight store starts again");
  return sync_failure_;
}

Status BlobFiles::SyncFailure() const {
  const std::lock_guard lock(mutex_);
  return sync_failure_;
}

StatusOr<std::string> BlobFiles::Read(const Hash128& digest, uint64_t offset,
                                      size_t max_bytes) const {
  const std::string path = PathOf(digest);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 && errno == ENOENT) {
    return NotFound("blob " + ToHex(digest) + " is missing in '" + folder_ + "'");
  }
  if (fd.get() < 0) return SystemError(errno, "cannot open", path);
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return SystemError(errno, "cannot look at", path);
  std::unique_ptr<Reading> reading = TakeReading(digest, offset);
  std::string bytes(max_bytes, '\0');
  size_t size = 0;
  while (size < max_bytes) {
    const ssize_t got =
        ::pread(fd.get(), bytes.data() + size, max_bytes - size, static_cast<off_t>(offset + size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, "cannot read", path);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  bytes.resize(size);
  if (reading == nullptr) return bytes;
  reading->hash.Add(bytes.data(), size);
  reading->offset += size;
  if (size == max_bytes && reading->offset < static_cast<uint64_t>(info.st_size)) {
    KeepReading(std::move(reading));
    return bytes;
  }
  const Hash128 found = reading->hash.Digest();
  if (found != digest) return Damaged(digest, "its bytes have digest " + ToHex(found));
  return bytes;
}

std::unique_ptr<BlobFiles::Reading> BlobFiles::TakeReading(const Hash128& digest,
                                                           uint64_t offset) const {
  if (offset == 0) {
    auto reading = std::make_unique<Reading>();
    reading->digest = digest;
    return reading;
  }
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(readings_.begin(), readings_.end(), [&](const auto& reading) {
    return reading->offset == offset && reading->digest == digest;
  });
  if (at == readings_.end()) return nullptr;
  std::unique_ptr<Reading> reading = std::move(*at);
  readings_.erase(at);
  return reading;
}

void BlobFiles::KeepReading(std::unique_ptr<Reading> reading) const {
  const std::lock_guard lock(mutex_);
  readings_.push_back(std::move(reading));
  if (readings_.size() > kMaxReadings) readings_.pop_front();
}

Status BlobFiles::ReadWhole(const Hash128& digest, std::span<std::byte> out) const {
  const std::string path = PathOf(digest);
  TITAN_ASSIGN_OR_RETURN(const uint64_t size, SizeOf(digest));
  if (size != out.size()) {
    return Damaged(digest, "it has " + std::to_string(size) + " bytes, " +
                               std::to_string(out.size()) + " were stored");
  }
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError(errno, "cannot open", path);
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(fd.get(), out.data() + done, out.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, "cannot read", path);
    if (got == 0) return Damaged(digest, "it ends early");
    done += static_cast<size_t>(got);
  }
  const Hash128 found = Hash128Of(out.data(), out.size(), 0);
  if (found == digest) return OkStatus();
  return Damaged(digest, "its bytes have digest " + ToHex(found));
}

Status BlobFiles::Damaged(const Hash128& digest, const std::string& what) const {
  const Status damage =
      DataLoss("blob " + ToHex(digest) + " is damaged: '" + PathOf(digest) + "': " + what);
  if (on_damage_) on_damage_(damage);
  return damage;
}

bool BlobFiles::VisitWhole(const Hash128& digest,
                           const std::function<void(std::span<const std::byte>)>& visit) const {
  const UniqueFd fd(::open(PathOf(digest).c_str(), O_RDONLY | O_CLOEXEC));
  return fd.get() >= 0 && Compare(digest, fd, visit).ok();
}

Status BlobFiles::Compare(const Hash128& digest, const UniqueFd& fd,
                          const std::function<void(std::span<const std::byte>)>& visit) const {
  TITAN_RETURN_IF_ERROR(ReadThrough(fd, PathOf(digest)));
  TITAN_ASSIGN_OR_RETURN(const MappedMemory map, MapWhole(fd, PathOf(digest)));
  const Hash128 found = Hash128Of(map.data(), map.size(), 0);
  if (found != digest) return Damaged(digest, "its bytes have digest " + ToHex(found));
  if (visit) visit({map.data(), map.size()});
  return OkStatus();
}

StatusOr<uint64_t> BlobFiles::SizeOf(const Hash128& digest) const {
  std::error_code error;
  const uint64_t size = fs::file_size(PathOf(digest), error);
  if (error == std::errc::no_such_file_or_directory) {
    return NotFound("blob " + ToHex(digest) + " is missing in '" + folder_ + "'");
  }
  if (error) return SystemError(error.value(), "cannot look at", PathOf(digest));
  return size;
}

Status BlobFiles::Remove(const Hash128& digest) const {
  const std::string path = PathOf(digest);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return OkStatus();
  return SystemError(errno, "cannot remove", path);
}

StatusOr<std::vector<BlobFiles::Entry>> BlobFiles::List() const {
  std::vector<std::pair<std::string, Entry>> named;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    Entry entry;
    if (!FromHex(name, &entry.digest)) continue;
    std::error_code gone;
    entry.num_bytes = at->file_size(gone);
    if (!gone) named.emplace_back(name, entry);
  }
  if (error) return SystemError(error.value(), "cannot list", folder_);
  std::sort(named.begin(), named.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Entry> entries;
  for (const auto& [name, entry] : named) entries.push_back(entry);
  return entries;
}

StatusOr<uint64_t> BlobFiles::FreeBytes() const {
  std::error_code error;
  const fs::space_info space = fs::space(folder_, error);
  if (error) return SystemError(error.value(), "no free space known of", folder_);
  return space.available;
}

}  // namespace titan::weightstore
