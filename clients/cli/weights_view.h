// SPDX-License-Identifier: Apache-2.0
//
// Weight versions as people name and read them. Pure functions, any thread.
#ifndef TITAN_CLIENTS_CLI_WEIGHTS_VIEW_H_
#define TITAN_CLIENTS_CLI_WEIGHTS_VIEW_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "clients/cluster/terminal.h"
#include "core/base/status.h"
#include "titan/weightstore/v1/weightstore.pb.h"

namespace titan::cli {

// "job-1" or "job-1@3".
struct VersionName {
  std::string job;
  std::optional<uint64_t> version;
};
// InvalidArgument: no job, or what follows @ is not a number.
StatusOr<VersionName> ParseVersionName(const std::string& text);

// Names a job or one of its versions ("job-1", "x@3"), not a model.
bool IsVersionName(const std::string& text);

// "COMMITTED" of VERSION_STATE_COMMITTED; "KEPT" of a version that is on disk only.
std::string StateOf(const weightstore::v1::VersionInfo& version);
// Its bytes can be mapped out of the store's memory.
bool IsMapped(const weightstore::v1::VersionInfo& version);
// They can, or they are on disk.
bool IsReadable(const weightstore::v1::VersionInfo& version);
// In memory (complete or not) or on disk; else only its record is left.
bool Exists(const weightstore::v1::VersionInfo& version);
// The line that says how many versions a list leaves out; empty for 0.
std::string NotShown(size_t versions);
// "12.3 MiB".
std::string MebiBytes(uint64_t bytes);

// The version that is meant: the one that is named, else the newest that can be read. NotFound: no
// such version; FailedPrecondition: it is there as a record only.
StatusOr<weightstore::v1::VersionInfo> ChooseVersion(
    const weightstore::v1::ListVersionsResponse& versions, const VersionName& name);

// A row of the table of versions (the head is VersionHead).
std::vector<std::string> VersionHead();
std::vector<std::string> VersionRow(const std::string& job,
                                    const weightstore::v1::VersionInfo& version);
// The table of models (imported and kept).
std::vector<std::string> ModelHead();
std::vector<std::string> ModelRow(const weightstore::v1::StoredModel& model);

// The table of the checkpoints of jobs that run; empty without any. `job_of_run` as below.
std::string FormatCheckpoints(const weightstore::v1::ListStoredModelsResponse& stored,
                              const std::map<std::string, std::string>& job_of_run);

// What a collection deleted, or would delete: then `command` says how to do it. `job_of_run` names
// the jobs; a run without one goes by its own id.
std::string FormatCollected(const weightstore::v1::CollectGarbageResponse& collected,
                            const std::map<std::string, std::string>& job_of_run,
                            const std::string& command);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_WEIGHTS_VIEW_H_
