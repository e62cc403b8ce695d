// SPDX-License-Identifier: Apache-2.0
//
// Weight versions as people name and read them. Pure functions, any thread.
#ifndef TITAN_CLIENTS_CLI_WEIGHTS_VIEW_H_
#define TITAN_CLIENTS_CLI_WEIGHTS_VIEW_H_

#include <cstdint>
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

// "COMMITTED" of VERSION_STATE_COMMITTED.
std::string NameOf(weightstore::v1::VersionState state);
// It has bytes that a reader may map.
bool IsReadable(weightstore::v1::VersionState state);

// The version that is meant: the one that is named, else the newest that can be read. NotFound: no
// such version; FailedPrecondition: it is there as a record only.
StatusOr<weightstore::v1::VersionInfo> ChooseVersion(
    const weightstore::v1::ListVersionsResponse& versions, const VersionName& name);

// A row of the table of versions (the head is VersionHead).
std::vector<std::string> VersionHead();
std::vector<std::string> VersionRow(const std::string& job,
                                    const weightstore::v1::VersionInfo& version);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_WEIGHTS_VIEW_H_
