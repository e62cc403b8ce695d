// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/base/durable_file.h"
#include "core/formats/json.h"
#include "core/formats/safetensors.h"

namespace titan::formats {
namespace {

constexpr size_t kHeaderAlignment = 8;  // the data of the first tensor is aligned

std::string PartialPath(const std::string& path) { return path + ".partial"; }

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
  if (writer.fd_ < 0) return SystemError(errno, "cannot create", PartialPath(path));
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
  return WriteAll(fd_, {static_cast<const char*>(data), num_bytes}, PartialPath(path_));
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
  if (fsync(fd_) != 0) return SystemError(errno, "cannot sync", PartialPath(path_));
  TITAN_RETURN_IF_ERROR(RenameDurably(PartialPath(path_), path_));
  close(fd_);
  fd_ = -1;
  return OkStatus();
}

}  // namespace titan::formats
