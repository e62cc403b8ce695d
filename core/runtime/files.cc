// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

namespace titan::runtime {
namespace {

// "16 MiB"; "1000 bytes" of what is no whole number of MiB.
std::string SizeText(size_t bytes) {
  constexpr size_t kMib = size_t{1} << 20;
  return bytes > 0 && bytes % kMib == 0 ? std::to_string(bytes / kMib) + " MiB"
                                        : std::to_string(bytes) + " bytes";
}

}  // namespace

StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError(errno, "cannot open", path);
  std::string content;
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(errno, "cannot read", path);
    if (n == 0) return content;
    if (content.size() + static_cast<size_t>(n) > max_bytes) {
      return ResourceExhausted("'" + path + "' has more than " + SizeText(max_bytes));
    }
    content.append(buffer, static_cast<size_t>(n));
  }
}

Status MakeWritableFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return FailedPrecondition("cannot make folder '" + path + "': " + error.message());
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    return FailedPrecondition("folder '" + path + "' is not writable: " + strerror(errno));
  }
  return OkStatus();
}

StatusOr<FileLock> FileLock::Acquire(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError(errno, "cannot open lock file", path);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    close(fd);
    if (error == EWOULDBLOCK)
      return FailedPrecondition("'" + path + "' is locked by a running process");
    return SystemError(error, "cannot lock", path);
  }
  return FileLock(fd);
}

bool FileLock::IsHeld(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return false;
  return flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace titan::runtime
