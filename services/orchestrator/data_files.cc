// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/data_files.h"

#include <algorithm>
#include <filesystem>

#include "core/base/hash.h"
#include "core/runtime/files.h"
#include "orchestrator/dataset.h"
#include "services/rpc/config.h"

namespace titan::orchestrator {
namespace {

constexpr size_t kMaxInfoBytes = 64u << 10;

Status CheckId(const std::string& id) {
  Hash128 ignored;
  return FromHex(id, &ignored) ? OkStatus() : InvalidArgument("'" + id + "' is not 32 hex digits");
}

Status NoSuchData(const std::string& id) {
  return NotFound("no data '" + id + "' is stored here; store it with: titanctl data upload FILE");
}

}  // namespace

std::string DataIdOf(const std::string& bytes) {
  return ToHex(Hash128Of(bytes.data(), bytes.size(), 0));
}

Status DataFiles::MakeFolder() const {
  TITAN_RETURN_IF_ERROR(runtime::MakeWritableFolder(folder_));
  return SyncFolder(std::filesystem::path(folder_).parent_path().string());
}

StatusOr<v1::DataInfo> DataFiles::Store(const std::string& name, const std::string& bytes,
                                        int64_t unix_ms, bool* existed) const {
  TITAN_ASSIGN_OR_RETURN(const Dataset dataset, ParseDataset(bytes, name));
  if (dataset.rows.empty()) return InvalidArgument(name + ": has no rows");
  v1::DataInfo info;
  info.set_id(DataIdOf(bytes));
  const std::string path = folder_ + "/" + info.id();
  const std::lock_guard lock(storing_);
  std::error_code error;
  *existed = std::filesystem::exists(path + ".json", error);
  if (*existed) {
    const Status stored = Read(info.id()).status();
    *existed = stored.ok();
    const bool half_gone =
        stored.code() == StatusCode::kNotFound || stored.code() == StatusCode::kDataLoss;
    if (!stored.ok() && !half_gone) return stored;
  }
  if (*existed) {
    rpc::ConfigOrigins ignored;
    TITAN_RETURN_IF_ERROR(rpc::ReadConfigFile(path + ".json", &info, &ignored));
    return info;
  }
  info.set_name(name);
  info.set_num_bytes(bytes.size());
  info.set_rows(dataset.rows.size());
  info.set_stored_unix_ms(unix_ms);
  Status written = runtime::WriteFileAtomically(path + ".jsonl", bytes);
  if (written.ok()) {  // the description comes last: what it describes is there
    written = runtime::WriteFileAtomically(path + ".json",
                                           rpc::ToJsonText(info, /*all_fields=*/false) + "\n");
  }
  if (written.ok()) return info;
  // What could not be synced must not be found by who tries again.
  std::filesystem::remove(path + ".json", error);
  std::filesystem::remove(path + ".jsonl", error);
  return written;
}

StatusOr<std::string> DataFiles::Read(const std::string& id) const {
  TITAN_RETURN_IF_ERROR(CheckId(id));
  auto bytes = runtime::ReadFile(folder_ + "/" + id + ".jsonl", kMaxDataBytes);
  if (!bytes.ok() && bytes.status().code() == StatusCode::kNotFound) return NoSuchData(id);
  if (bytes.ok() && DataIdOf(*bytes) != id) {
    return DataLoss("data '" + id + "' is not what was stored; upload it again");
  }
  return bytes;
}

StatusOr<v1::DataInfo> DataFiles::Remove(const std::string& id) const {
  TITAN_RETURN_IF_ERROR(CheckId(id));
  const std::lock_guard lock(storing_);
  const std::string path = folder_ + "/" + id;
  v1::DataInfo info;
  info.set_id(id);
  rpc::ConfigOrigins ignored;
  // One without its description is deleted as well.
  rpc::ReadConfigFile(path + ".json", &info, &ignored).IgnoreError();
  std::error_code error;
  bool existed = false;
  for (const char* part : {".json", ".jsonl"}) {  // what it describes goes last
    existed = std::filesystem::remove(path + part, error) || existed;
    if (error) return runtime::SystemError(error.value(), "cannot delete", path + part);
  }
  if (!existed) return NoSuchData(id);
  return info;
}

StatusOr<std::vector<v1::DataInfo>> DataFiles::List() const {
  std::vector<v1::DataInfo> all;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() != ".json") continue;
    const auto text = runtime::ReadFile(at->path().string(), kMaxInfoBytes);
    v1::DataInfo info;
    rpc::ConfigOrigins ignored;
    if (!text.ok()) continue;  // removed meanwhile
    TITAN_RETURN_IF_ERROR(rpc::ReadConfigText(*text, at->path().string(), &info, &ignored));
    all.push_back(std::move(info));
  }
  std::sort(all.begin(), all.end(), [](const v1::DataInfo& a, const v1::DataInfo& b) {
    return std::pair(a.stored_unix_ms(), a.id()) < std::pair(b.stored_unix_ms(), b.id());
  });
  return all;
}

}  // namespace titan::orchestrator
