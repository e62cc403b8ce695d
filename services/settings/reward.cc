// SPDX-License-Identifier: Apache-2.0
#include "services/settings/settings.h"
#include "services/settings/shared.h"

namespace titan::settings {

void FillDefaults(config::v1::RewardConfig* config) {
  FillDaemonDefaults("reward", config->mutable_daemon());
  config->set_max_batch_items(256);
}

void Validate(const config::v1::RewardConfig& config, rpc::ConfigProblems* problems) {
  ValidateDaemon(config.daemon(), problems);
  ValidatePeerAddress("orchestrator_address", config.orchestrator_address(), problems);
  ValidateRange("max_batch_items", config.max_batch_items(), 1, 4096, "", problems);
}

}  // namespace titan::settings
