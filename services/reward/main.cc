// SPDX-License-Identifier: Apache-2.0
// titan-reward. Threads: gRPC's, the control strand, two blocking threads that grade, the health
// listener's.
#include <utility>

#include "services/reward/reward_service.h"
#include "services/rpc/daemon.h"
#include "services/settings/daemon_spec.h"

int main(int argc, char** argv) {
  using titan::config::v1::RewardConfig;
  titan::rpc::DaemonSpec<RewardConfig> spec;
  spec.role = "reward";
  spec.description = "Scores finished samples with the built-in graders.";
  spec.worker_role = titan::type::v1::WORKER_ROLE_REWARD;
  titan::settings::UseSettings(&spec);
  spec.create = titan::reward::RewardService::Create;
  return titan::rpc::DaemonMain(argc, argv, std::move(spec));
}
