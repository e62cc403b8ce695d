// SPDX-License-Identifier: Apache-2.0
//
// From what a person names ("job-1@3", a model's id or name) to its weights: mapped out of the
// store's memory, or as they lie on its disk.
#ifndef TITAN_CLIENTS_CLI_FOUND_VERSION_H_
#define TITAN_CLIENTS_CLI_FOUND_VERSION_H_

#include <memory>
#include <optional>
#include <string>

#include "clients/cli/arguments.h"
#include "clients/cli/store_client.h"
#include "clients/cli/weights_view.h"
#include "core/base/status.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"
#include "weightstore/client/stored_model.h"

namespace titan::cli {

struct FoundVersion {
  std::unique_ptr<StoreClient> store;
  // On disk: an imported model, or a version that was kept. Without it the version can be mapped.
  std::optional<weightstore::StoredModel> stored;
  // Of a job; empty for a model.
  VersionName name;
  orchestrator::v1::Job job;
  weightstore::v1::VersionInfo version;

  bool is_model() const { return name.job.empty(); }
  std::string digest() const;  // of the weights, as recorded
  std::string title() const;   // "version 3 of job-1", "model smol"
};

// Codes of ParseVersionName and ChooseVersion; Unavailable: no cluster; NotFound: no such model.
StatusOr<FoundVersion> FindVersion(const Common& common, const std::string& text);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_FOUND_VERSION_H_
