// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/preflight.h"

#include <sys/stat.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "clients/cluster/cluster_config.h"
#include "core/base/hash.h"
#include "core/runtime/files.h"
#include "core/runtime/listen.h"
#include "core/runtime/machine.h"

namespace titan::cluster {
namespace {

constexpr char kProgramVersion[] = "0.1.0";

std::string Mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

Status CheckRoom(const config::v1::ClusterConfig& cluster, uint64_t memory_available,
                 uint64_t disk_available) {
  uint64_t caches = 0;
  for (const config::v1::GeneratorConfig& generator : GeneratorConfigs(cluster)) {
    const uint64_t bytes = generator.kv_cache_bytes();
    caches = bytes > UINT64_MAX - caches ? UINT64_MAX : caches + bytes;
  }
  if (caches > memory_available) {
    return ResourceExhausted("too little memory: the caches of " +
                             std::to_string(cluster.num_generators()) + " generators take " +
                             Mib(caches) + ", " + Mib(memory_available) +
                             " are free; lower generator.kv_cache_bytes or num_generators, or end "
                             "other programs");
  }
  if (disk_available < kMinDiskBytes) {
    return ResourceExhausted("too little disk: the volume of '" + cluster.data_folder() + "' has " +
                             Mib(disk_available) + " free, a cluster wants at least " +
                             Mib(kMinDiskBytes) + "; free the disk or choose another folder");
  }
  return OkStatus();
}

Status CheckFormat(std::string_view text, const std::string& path) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("format") || !json["format"].is_number_integer()) {
    return DataLoss("'" + path +
                    "' does not say which format the data folder has; use another "
                    "folder, or restore the file");
  }
  const auto format = json["format"].get<int64_t>();
  if (format > kDataFormat) {
    return FailedPrecondition("the data folder was written by a newer version of the program (" +
                              path + ": format " + std::to_string(format) +
                              ", this one knows up to " + std::to_string(kDataFormat) +
                              "); use that version or another folder");
  }
  return OkStatus();
}

Status CheckPorts(const config::v1::ClusterConfig& cluster, const rpc::ConfigOrigins& origins) {
  rpc::ConfigProblems problems;
  for (const Listener& listener : FixedListeners(cluster)) {
    const auto address = runtime::ParseHostPort(listener.address);
    if (const int error = runtime::TryListen(*address); error != 0) {
      problems.push_back({listener.path, MessageOf(runtime::CannotListen(*address, error))});
    }
  }
  if (problems.empty()) return OkStatus();
  return FailedPrecondition(MessageOf(rpc::ProblemsToStatus(problems, origins)));
}

Status Preflight(const config::v1::ClusterConfig& cluster, const rpc::ConfigOrigins& origins) {
  TITAN_RETURN_IF_ERROR(CheckPorts(cluster, origins));
  std::error_code error;
  const auto space = std::filesystem::space(cluster.data_folder(), error);
  const auto memory = runtime::AvailableMemory();
  TITAN_RETURN_IF_ERROR(
      CheckRoom(cluster, memory.value_or(UINT64_MAX), error ? UINT64_MAX : space.available));
  const std::string path = cluster.data_folder() + "/format.json";
  const auto text = runtime::ReadFile(path);
  if (text.ok()) return CheckFormat(*text, path);
  if (text.status().code() != StatusCode::kNotFound) return text.status();
  nlohmann::ordered_json json;
  json["format"] = kDataFormat;
  json["program"] = kProgramVersion;
  return runtime::WriteFileAtomically(path, json.dump() + "\n");
}

std::string ProgramStamp(const std::string& bin_folder) {
  uint64_t stamp = 0;
  for (const char* name : {"titanctl", "titan-orchestrator", "titan-generator", "titan-trainer",
                           "titan-weightstore", "titan-reward"}) {
    struct stat info = {};
    if (stat((bin_folder + "/" + name).c_str(), &info) != 0) continue;
    stamp = HashFields(stamp, Hash64(name), static_cast<int64_t>(info.st_size),
                       static_cast<int64_t>(info.st_mtim.tv_sec),
                       static_cast<int64_t>(info.st_mtim.tv_nsec));
  }
  return ToHex(stamp);
}

}  // namespace titan::cluster
