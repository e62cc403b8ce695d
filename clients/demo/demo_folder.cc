// SPDX-License-Identifier: Apache-2.0
#include "clients/demo/demo_folder.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "clients/cluster/cluster.h"
#include "core/runtime/files.h"

namespace titan::demo {
namespace {

namespace fs = std::filesystem;

// The name of a file that is written whole may end so while it is written (and stay when the
// program dies).
bool IsFile(std::string_view name, std::string_view wanted) {
  return name == wanted || name.starts_with(std::string(wanted) + ".new.");
}

bool IsGenerator(std::string_view name) {
  constexpr std::string_view kPrefix = "generator-";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

bool IsOfACluster(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  std::error_code error;
  if (fs::is_directory(entry.symlink_status(error))) {
    for (const char* folder :
         {"config", "logs", "orchestrator", "weightstore", "trainer", "reward"}) {
      if (name == folder) return true;
    }
    return IsGenerator(name);
  }
  for (const char* file :
       {"cluster.lock", "endpoints.json", "supervisor.json", "format.json", "ws.sock"}) {
    if (IsFile(name, file)) return true;
  }
  return false;
}

// Is this a file of the folder of configurations (".json") or of logs (".log")?
bool IsOfADaemon(const fs::directory_entry& entry, std::string_view ending) {
  const std::string name = entry.path().filename().string();
  std::error_code error;
  return fs::is_regular_file(entry.symlink_status(error)) && name.find(ending) != std::string::npos;
}

// The entries of a folder; none when it is not there.
StatusOr<std::vector<fs::directory_entry>> EntriesOf(const std::string& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  if (!fs::exists(folder, error) && !error) return entries;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(*at);
  }
  if (error) return FailedPrecondition("cannot read '" + folder + "': " + error.message());
  return entries;
}

}  // namespace

Status ClaimFolder(const std::string& folder, const std::string& cluster_folder) {
  const std::string mark = folder + "/.titan-demo";
  if (std::filesystem::exists(mark)) return OkStatus();
  // Demos of an earlier version left no mark, but their data beside a cluster.
  const bool earlier = std::filesystem::exists(folder + "/additions.jsonl") &&
                       std::filesystem::exists(cluster::LockPath(cluster_folder));
  if (std::filesystem::exists(cluster_folder) && !earlier) {
    return InvalidArgument("'" + cluster_folder +
                           "' was not made by titan-demo, which would delete it; choose another "
                           "folder with --output, or move it away");
  }
  return runtime::WriteFileAtomically(mark, "titan-demo deletes what it left in this folder\n");
}

Status RemoveClusterFiles(const std::string& cluster_folder) {
  TITAN_ASSIGN_OR_RETURN(const auto entries, EntriesOf(cluster_folder));
  std::vector<std::string> foreign;
  for (const fs::directory_entry& entry : entries) {
    if (!IsOfACluster(entry)) foreign.push_back(entry.path().string());
  }
  for (const auto& [folder, ending] : {std::pair("config", ".json"), {"logs", ".log"}}) {
    TITAN_ASSIGN_OR_RETURN(const auto files, EntriesOf(cluster_folder + "/" + folder));
    for (const fs::directory_entry& entry : files) {
      if (!IsOfADaemon(entry, ending)) foreign.push_back(entry.path().string());
    }
  }
  if (!foreign.empty()) {
    std::sort(foreign.begin(), foreign.end());
    return InvalidArgument(
        "'" + foreign[0] + "'" +
        (foreign.size() > 1 ? " and " + std::to_string(foreign.size() - 1) + " more"
                            : std::string()) +
        (foreign.size() > 1 ? " were" : " was") + " not made by titan-demo, which empties '" +
        cluster_folder + "'; move it away, or choose another folder with --output");
  }
  for (const fs::directory_entry& entry : entries) {
    std::error_code error;
    fs::remove_all(entry.path(), error);
    if (error) {
      return FailedPrecondition("cannot delete '" + entry.path().string() +
                                "': " + error.message());
    }
  }
  return OkStatus();
}

}  // namespace titan::demo
