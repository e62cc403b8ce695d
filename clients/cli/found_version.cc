// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/found_version.h"

#include "clients/cli/commands.h"
#include "services/models/stored_source.h"

namespace titan::cli {

std::string FoundVersion::digest() const {
  return stored.has_value() ? ToHex(stored->weights_digest) : version.weights_digest();
}

std::string FoundVersion::title() const {
  if (is_model()) return services::Describe(*stored);
  return "version " + std::to_string(version.version()) + " of " + name.job;
}

StatusOr<FoundVersion> FindVersion(const Common& common, const std::string& text) {
  FoundVersion found;
  if (!IsVersionName(text)) {
    TITAN_ASSIGN_OR_RETURN(found.store, StoreClient::Open(common.data));
    TITAN_ASSIGN_OR_RETURN(found.stored, found.store->models().FindModel(text));
    return found;
  }
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
  if (IsMapped(found.version)) return found;
  TITAN_ASSIGN_OR_RETURN(
      found.stored, found.store->models().FindVersion(found.job.run_id(), found.version.version()));
  return found;
}

}  // namespace titan::cli
