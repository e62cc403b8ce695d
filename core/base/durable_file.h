// SPDX-License-Identifier: Apache-2.0
//
// Files that are whole or not there: the one place that writes, syncs and renames. A file is
// durable when its bytes and the folder that names it are both synced. Any thread, one writer
// of a path at a time; calls block.
#ifndef TITAN_CORE_BASE_DURABLE_FILE_H_
#define TITAN_CORE_BASE_DURABLE_FILE_H_

#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"

namespace titan {

// "<what> '<path>': <text of errno>": NotFound, FailedPrecondition (not allowed, in the way),
// ResourceExhausted (no room, no descriptors), else Unavailable.
Status SystemError(int error, std::string_view what, std::string_view path);

// Owns a descriptor; -1: none.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

// All bytes to `fd`, the file at `path`.
Status WriteAll(int fd, std::string_view bytes, std::string_view path);

// Makes durable what was made, renamed or removed in the folder; an empty name is ".".
Status SyncFolder(const std::string& folder);

// A new file, its bytes synced, its folder not. FailedPrecondition when something is there. A file
// that could not be written whole is removed.
Status WriteNewFile(const std::string& path, std::string_view content);

// Renames and syncs the folder of `to`.
Status RenameDurably(const std::string& from, const std::string& to);

// Writes a neighbour file, syncs it, renames it over `path` and syncs the folder: a reader sees the
// old or the new content and nothing between, and it is durable when this returns.
Status WriteFileAtomically(const std::string& path, std::string_view content);

}  // namespace titan

#endif  // TITAN_CORE_BASE_DURABLE_FILE_H_
