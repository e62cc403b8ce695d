// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/formats/json.h"
#include "core/formats/safetensors.h"

namespace titan::formats {
namespace {

constexpr size_t kHeaderAlignment = 8;  // the data of the first tensor is aligned

std::string PartialPath(const std::string& path) { return path + ".partial"; }

Status SystemError(const std::string& path, const char* action) {
  return Unavailable(fmt::format("{}: cannot {}: {}", path, action, std::strerror(errno)));
}

Status SyncFolder(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(folder, "open");
  const Status status = fsync(fd) == 0 ? OkStatus() : SystemError(folder, "sync");
  close(fd);
  return status;
}

}  // namespace

StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::vector<TensorSpec>& tensors,
    const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  std::set<std::string> names;
  int64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      return InvalidArgument(fmt::format("{}: tensor {}: the name is taken", path, tensor.name));
    }
    const int64_t end = at + tensor.num_elements() * static_cast<int64_t>(sizeof(float));
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');

  SafetensorsWriter writer;
  writer.path_ = path;
  writer.tensors_ = tensors;
  writer.fd_ = open(PartialPath(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer.fd_ < 0) return SystemError(PartialPath(path), "create");
  const uint64_t length = text.size();
  TITAN_RETURN_IF_ERROR(writer.WriteBytes(&length, sizeof(length)));
  TITAN_RETURN_IF_ERROR(writer.WriteBytes(text.data(), text.size()));
  writer.SkipFinished();
  return writer;
}

SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(tensors_, other.tensors_);
  std::swap(next_, other.next_);
  std::swap(num_written_, other.num_written_);
  return *this;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(PartialPath(path_).c_str());
}

Status SafetensorsWriter::WriteBytes(const void* data, size_t num_bytes) {
  const char* at = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t written = write(fd_, at, num_bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(PartialPath(path_), "write");
    at += written;
    num_bytes -= static_cast<size_t>(written);
  }
  return OkStatus();
}

void SafetensorsWriter::SkipFinished() {
  while (next_ < tensors_.size() && num_written_ == tensors_[next_].num_elements()) {
    ++next_;
    num_written_ = 0;
  }
}

Status SafetensorsWriter::Append(std::string_view name, std::span<const float> values) {
  TITAN_CHECK(fd_ >= 0);
  if (next_ == tensors_.size() || tensors_[next_].name != name) {
    const std::string due = next_ < tensors_.size() ? tensors_[next_].name : "the end";
    return FailedPrecondition(fmt::format("{}: tensor {}: {} is due", path_, name, due));
  }
  const int64_t left = tensors_[next_].num_elements() - num_written_;
  if (values.size() > static_cast<size_t>(left)) {
    return FailedPrecondition(
        fmt::format("{}: tensor {}: {} elements, {} are left", path_, name, values.size(), left));
  }
  TITAN_RETURN_IF_ERROR(WriteBytes(values.data(), values.size_bytes()));
  num_written_ += static_cast<int64_t>(values.size());
  SkipFinished();
  return OkStatus();
}

Status SafetensorsWriter::Finish() {
  TITAN_CHECK(fd_ >= 0);
  if (next_ < tensors_.size()) {
    return FailedPrecondition(fmt::format("{}: tensor {} is missing", path_, tensors_[next_].name));
  }
  if (fsync(fd_) != 0) return SystemError(PartialPath(path_), "sync");
  if (rename(PartialPath(path_).c_str(), path_.c_str()) != 0)
    return SystemError(path_, "rename to");
  close(fd_);
  fd_ = -1;
  return SyncFolder(path_);
}

}  // namespace titan::formats
