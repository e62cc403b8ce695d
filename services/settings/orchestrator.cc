// SPDX-License-Identifier: Apache-2.0
#include "services/settings/settings.h"
#include "services/settings/shared.h"

namespace titan::settings {

void FillDefaults(config::v1::OrchestratorConfig* config) {
  FillDaemonDefaults("orchestrator", config->mutable_daemon());
  config->set_worker_timeout_ms(5000);
  config->set_rpc_deadline_ms(10000);
}

void Validate(const config::v1::OrchestratorConfig& config, rpc::ConfigProblems* problems) {
  ValidateDaemon(config.daemon(), problems);
  ValidatePeerAddress("weightstore_address", config.weightstore_address(), problems);
  ValidateRange("worker_timeout_ms", config.worker_timeout_ms(), 100, 600000, "ms", problems);
  ValidateRange("rpc_deadline_ms", config.rpc_deadline_ms(), 100, 600000, "ms", problems);
}

}  // namespace titan::settings
