// SPDX-License-Identifier: Apache-2.0
#include "core/model/model_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "core/formats/safetensors.h"

namespace titan::model {
namespace {

Status SystemFailure(std::string_view action, const std::string& path, int error) {
  const std::string message = std::string(action) + " " + path + ": " + std::strerror(error);
  const bool full = error == ENOSPC || error == EDQUOT;
  return full ? ResourceExhausted(message) : Internal(message);
}

Status SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemFailure("cannot open", folder, errno);
  const int failed = fsync(fd);
  const int error = errno;
  close(fd);
  return failed != 0 ? SystemFailure("cannot sync", folder, error) : OkStatus();
}

int64_t LargestParameter(const ParameterTable& table) {
  int64_t largest = 0;
  for (const Parameter& p : table.parameters()) largest = std::max(largest, p.num_elements());
  return largest;
}

Status WriteSafetensors(kernels::Pool& pool, const ParameterTable& table, const float* slot,
                        const std::string& path) {
  std::vector<formats::TensorSpec> specs;
  for (const Parameter& p : table.parameters()) specs.push_back({.name = p.name, .shape = p.shape});
  TITAN_ASSIGN_OR_RETURN(formats::SafetensorsWriter writer,
                         formats::SafetensorsWriter::Create(path, specs, {{"format", "pt"}}));
  std::vector<float> values(static_cast<size_t>(LargestParameter(table)));
  for (const Parameter& p : table.parameters()) {
    const std::span<float> part = std::span(values).first(static_cast<size_t>(p.num_elements()));
    ReadParameter(pool, p, slot, part);
    TITAN_RETURN_IF_ERROR(writer.Append(p.name, part));
  }
  return writer.Finish();
}

// The file appears under its name only when whole: written beside it, synced, renamed.
Status WriteWholeFile(const std::string& path, std::string_view text) {
  const std::string partial = path + ".partial";
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return SystemFailure("cannot create", partial, errno);
  Status status = OkStatus();
  while (!text.empty() && status.ok()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      status = SystemFailure("cannot write", partial, errno);
    } else {
      text.remove_prefix(static_cast<size_t>(written));
    }
  }
  if (status.ok() && fsync(fd) != 0) status = SystemFailure("cannot sync", partial, errno);
  close(fd);
  if (status.ok() && rename(partial.c_str(), path.c_str()) != 0) {
    status = SystemFailure("cannot rename to", path, errno);
  }
  if (!status.ok()) unlink(partial.c_str());
  return status;
}

}  // namespace

Status LoadWeights(kernels::Pool& pool, const formats::ModelSource& source,
                   const ParameterTable& table, float* slot) {
  std::vector<float> values(static_cast<size_t>(LargestParameter(table)));
  for (int i = 0; i < table.size(); ++i) {
    const Parameter& p = table.at(i);
    const std::span<float> part = std::span(values).first(static_cast<size_t>(p.num_elements()));
    TITAN_RETURN_IF_ERROR(source.ReadTensorF32(p.name, part));
    StoreParameter(pool, p, part, slot);
    const int64_t end = i + 1 < table.size() ? table.at(i + 1).offset : table.slot_bytes();
    char* gap = reinterpret_cast<char*>(slot) + p.offset + p.bytes;
    std::memset(gap, 0, static_cast<size_t>(end - p.offset - p.bytes));
  }
  return OkStatus();
}

Status ExportSafetensors(kernels::Pool& pool, const ParameterTable& table,
                         const formats::ModelConfig& config, const float* slot,
                         const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return SystemFailure("cannot create the folder", folder, error.value());
  TITAN_RETURN_IF_ERROR(WriteSafetensors(pool, table, slot, folder + "/model.safetensors"));
  TITAN_RETURN_IF_ERROR(WriteWholeFile(folder + "/config.json", formats::ToHfConfigJson(config)));
  return SyncFolder(folder);
}

}  // namespace titan::model
