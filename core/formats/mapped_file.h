// SPDX-License-Identifier: Apache-2.0
//
// MappedFile: a regular file mapped read-only for the life of the object. Move-only; reading the
// bytes is safe from any thread. A file that is cut while it is mapped raises SIGBUS on access:
// model files must not be changed while they are open.
#ifndef TITAN_CORE_FORMATS_MAPPED_FILE_H_
#define TITAN_CORE_FORMATS_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "core/base/status.h"

namespace titan::formats {

class MappedFile {
 public:
  // NotFound: no such file. InvalidArgument: not a regular file. Unavailable: the system refused,
  // with its reason. An empty file is mapped as an empty span.
  static StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {data_, num_bytes_}; }

 private:
  MappedFile() = default;

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t num_bytes_ = 0;
};

// The whole text of a small file. Errors of MappedFile::Open; ResourceExhausted: longer than
// max_bytes.
StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_MAPPED_FILE_H_
