// SPDX-License-Identifier: Apache-2.0
#include "core/formats/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace titan::formats {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status SystemError(const std::string& path, const char* action) {
  const int error = errno;
  const std::string message = fmt::format("{}: cannot {}: {}", path, action, std::strerror(error));
  return error == ENOENT || error == ENOTDIR ? NotFound(message) : Unavailable(message);
}

}  // namespace

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its other end.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return SystemError(path, "open");
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return SystemError(path, "stat");
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path + ": is not a regular file");
  MappedFile file;
  file.path_ = path;
  file.num_bytes_ = static_cast<size_t>(info.st_size);
  if (file.num_bytes_ == 0) return file;
  void* data = mmap(nullptr, file.num_bytes_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError(path, "map");
  file.data_ = static_cast<const uint8_t*>(data);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), num_bytes_);
}

StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  TITAN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > max_bytes) {
    return ResourceExhausted(
        fmt::format("{}: {} bytes, at most {} are read", path, file.bytes().size(), max_bytes));
  }
  return std::string(file.bytes().begin(), file.bytes().end());
}

}  // namespace titan::formats
