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

// A descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Status SystemError(int error, std::string_view what, std::string_view path) {
  StatusCode code = StatusCode::kUnavailable;
  if (error == ENOENT) code = StatusCode::kNotFound;
  if (error == EACCES || error == EROFS || error == ENOTDIR || error == EPERM || error == EEXIST) {
    code = StatusCode::kFailedPrecondition;
  }
  if (error == ENOSPC || error == EDQUOT || error == EMFILE) code = StatusCode::kResourceExhausted;
  return MakeStatus(
      code, std::string(what) + " '" + std::string(path) + "': " + std::string(strerror(error)));
}

StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError(errno, "cannot open", path);
  std::string content;
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(errno, "cannot read", path);
    if (n == 0) return content;
    if (content.size() + static_cast<size_t>(n) > max_bytes) {
      return ResourceExhausted("'" + path + "' has more than " + std::to_string(max_bytes) +
                               " bytes");
    }
    content.append(buffer, static_cast<size_t>(n));
  }
}

Status WriteFileAtomically(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".new." + std::to_string(getpid());
  {
    Fd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0) return SystemError(errno, "cannot create", temporary);
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t n = write(fd.get(), content.data() + done, content.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        const int error = errno;
        unlink(temporary.c_str());
        return SystemError(error, "cannot write", temporary);
      }
      done += static_cast<size_t>(n);
    }
    if (fsync(fd.get()) != 0) return SystemError(errno, "cannot sync", temporary);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    return SystemError(error, "cannot rename to", path);
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  Fd dir(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (dir.get() < 0) return SystemError(errno, "cannot open folder", folder);
  if (fsync(dir.get()) != 0) return SystemError(errno, "cannot sync folder", folder);
  return OkStatus();
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
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
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
