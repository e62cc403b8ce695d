// SPDX-License-Identifier: Apache-2.0
#include "core/model/decoder.h"
#include "services/settings/settings.h"
#include "services/settings/shared.h"

namespace titan::settings {

void FillDefaults(config::v1::TrainerConfig* config) {
  FillDaemonDefaults("trainer", config->mutable_daemon());
  FillKernelDefaults(config->mutable_kernels());
  config->set_max_pack_tokens(2048);
  config->set_recompute("none");
}

void Validate(const config::v1::TrainerConfig& config, rpc::ConfigProblems* problems) {
  ValidateDaemon(config.daemon(), problems);
  ValidateKernels(config.kernels(), problems);
  ValidatePeerAddress("orchestrator_address", config.orchestrator_address(), problems);
  ValidatePeerAddress("weightstore_address", config.weightstore_address(), problems);
  if (config.weightstore_socket().empty()) {
    problems->push_back({"weightstore_socket", "is required: path of the store's unix socket"});
  }
  ValidateRange("max_pack_tokens", config.max_pack_tokens(), 2048, 1 << 20, "", problems);
  if (!model::RecomputeFromName(config.recompute()).ok()) {
    problems->push_back(
        rpc::InvalidValue("recompute", "\"" + config.recompute() + "\"", "none, selective, full"));
  }
}

}  // namespace titan::settings
