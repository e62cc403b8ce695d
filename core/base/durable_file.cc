// SPDX-License-Identifier: Apache-2.0
#include "core/base/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>

namespace titan {
namespace {

// Writes and syncs; takes the file away again when that fails.
Status WriteAndSync(const FileDescriptor& fd, std::string_view content, const std::string& path) {
  Status status = WriteAll(fd.get(), content, path);
  if (status.ok() && fsync(fd.get()) != 0) status = SystemError(errno, "cannot sync", path);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

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

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

Status WriteAll(int fd, std::string_view bytes, std::string_view path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(errno, "cannot write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

Status SyncFolder(const std::string& folder) {
  const std::string name = folder.empty() ? "." : folder;
  const FileDescriptor fd(open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError(errno, "cannot open folder", name);
  if (fsync(fd.get()) != 0) return SystemError(errno, "cannot sync folder", name);
  return OkStatus();
}

Status WriteNewFile(const std::string& path, std::string_view content) {
  const FileDescriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (fd.get() < 0) return SystemError(errno, "cannot create", path);
  return WriteAndSync(fd, content, path);
}

Status RenameDurably(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return SystemError(errno, "cannot rename to", to);
  return SyncFolder(std::filesystem::path(to).parent_path().string());
}

Status WriteFileAtomically(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".new." + std::to_string(getpid());
  {
    const FileDescriptor fd(
        open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0) return SystemError(errno, "cannot create", temporary);
    TITAN_RETURN_IF_ERROR(WriteAndSync(fd, content, temporary));
  }
  const Status renamed = RenameDurably(temporary, path);
  if (!renamed.ok()) unlink(temporary.c_str());  // not there when only the folder's sync failed
  return renamed;
}

}  // namespace titan
