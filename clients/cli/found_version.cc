// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/found_version.h"

#include "clients/cli/commands.h"

namespace titan::cli {

StatusOr<FoundVersion> FindVersion(const Common& common, const std::string& text) {
  FoundVersion found;
  TITAN_ASSIGN_OR_RETURN(found.name, ParseVersionName(text));
  TITAN_ASSIGN_OR_RETURN(const auto client, ConnectTo(common));
  TITAN_ASSIGN_OR_RETURN(found.job, client->Get(found.name.job));
  TITAN_ASSIGN_OR_RETURN(found.store, StoreClient::Open(common.data));
  const auto versions = found.store->ListVersions(found.job.run_id());
  if (!versions.ok() && versions.status().code() == StatusCode::kNotFound) {
    return NotFound(found.name.job + " has no versions yet");
  }
  if (!versions.ok()) return versions.status();
  TITAN_ASSIGN_OR_RETURN(found.version, ChooseVersion(*versions, found.name));
  return found;
}

}  // namespace titan::cli
