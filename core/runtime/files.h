// SPDX-License-Identifier: Apache-2.0
//
// Small files of a process: read whole, written so that a reader sees the old or the new content
// and nothing between. Any thread; calls block.
#ifndef TITAN_CORE_RUNTIME_FILES_H_
#define TITAN_CORE_RUNTIME_FILES_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/durable_file.h"
#include "core/base/status.h"

namespace titan::runtime {

using titan::SystemError;
using titan::WriteFileAtomically;

// The content. NotFound; ResourceExhausted when it has more than max_bytes; else the system's
// reason.
StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes = 64u << 20);

// Makes a folder and its parents; FailedPrecondition when it cannot be made or written to.
Status MakeWritableFolder(const std::string& path);

// An advisory lock (flock) on a file, held until destroyed or the process ends.
class FileLock {
 public:
  // FailedPrecondition when another process holds it; its content (say a pid) is left alone.
  static StatusOr<FileLock> Acquire(const std::string& path);
  // True when some process holds the lock. NotFound files are not held.
  static bool IsHeld(const std::string& path);
  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_FILES_H_
