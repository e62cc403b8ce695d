// SPDX-License-Identifier: Apache-2.0
//
// titan-trainer: trains planned steps and publishes a version after each.
//
//   gRPC threads -> control strand (service) -> engine thread (forward, backward, optimizer,
//   publish; kernel pool)
#include "core/kernels/isa.h"
#include "core/runtime/log.h"
#include "services/rpc/daemon.h"
#include "services/settings/daemon_spec.h"
#include "services/trainer/trainer_service.h"
#include "services/weightstore_client/grpc_leader.h"

namespace titan::services {
namespace {

using config::v1::TrainerConfig;

StatusOr<std::unique_ptr<rpc::DaemonService>> Create(const TrainerConfig& config,
                                                     rpc::DaemonContext& context) {
  TITAN_RETURN_IF_ERROR(kernels::SetIsa(config.kernels().isa()));
  TITAN_LOG(kInfo, "kernels_selected", {"isa", kernels::CurrentIsaName()},
            {"threads", config.kernels().threads()});
  TITAN_ASSIGN_OR_RETURN(
      auto leader, weightstore::GrpcLeader::Create(context.client, config.weightstore_address()));
  return std::make_unique<TrainerService>(config, std::move(leader), context);
}

}  // namespace
}  // namespace titan::services

int main(int argc, char** argv) {
  titan::rpc::DaemonSpec<titan::config::v1::TrainerConfig> spec;
  spec.role = "trainer";
  spec.description = "Trains planned steps and publishes a weight version after each.";
  spec.worker_role = titan::type::v1::WORKER_ROLE_TRAINER;
  titan::settings::UseSettings(&spec);
  spec.create = titan::services::Create;
  return titan::rpc::DaemonMain<titan::config::v1::TrainerConfig>(argc, argv, std::move(spec));
}
