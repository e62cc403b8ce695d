// SPDX-License-Identifier: Apache-2.0
//
// From "job-1@3" to the job, the version's record and the store that holds its weights.
#ifndef TITAN_CLIENTS_CLI_FOUND_VERSION_H_
#define TITAN_CLIENTS_CLI_FOUND_VERSION_H_

#include <memory>
#include <string>

#include "clients/cli/arguments.h"
#include "clients/cli/store_client.h"
#include "clients/cli/weights_view.h"
#include "core/base/status.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::cli {

struct FoundVersion {
  VersionName name;
  orchestrator::v1::Job job;
  weightstore::v1::VersionInfo version;  // its weights can be mapped
  std::unique_ptr<StoreClient> store;
};

// Codes of ParseVersionName and ChooseVersion; Unavailable: no cluster.
StatusOr<FoundVersion> FindVersion(const Common& common, const std::string& text);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_FOUND_VERSION_H_
