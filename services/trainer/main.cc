// SPDX-License-Identifier: Apache-2.0
//
// titan-trainer: trains planned steps and publishes a version after each.
//
//   gRPC threads -> control strand (service) -> engine thread (forward, backward, optimizer,
//   publish; kernel pool)
#include <thread>

#include "core/kernels/isa.h"
#include "core/model/decoder.h"
#include "core/runtime/log.h"
#include "services/rpc/daemon.h"
#include "services/trainer/trainer_service.h"
#include "services/weightstore_client/grpc_leader.h"

namespace titan::services {
namespace {

using config::v1::TrainerConfig;

void FillDefaults(TrainerConfig* config) {
  config->mutable_kernels()->set_threads(std::max(1u, std::thread::hardware_concurrency()));
  config->mutable_kernels()->set_isa("auto");
  config->set_max_pack_tokens(2048);
  config->set_recompute("none");
}

void Validate(const TrainerConfig& config, rpc::ConfigProblems* problems) {
  rpc::ValidatePeerAddress("orchestrator_address", config.orchestrator_address(), problems);
  rpc::ValidatePeerAddress("weightstore_address", config.weightstore_address(), problems);
  if (config.weightstore_socket().empty()) {
    problems->push_back({"weightstore_socket", "is required: path of the store's unix socket"});
  }
  if (!model::RecomputeFromName(config.recompute()).ok()) {
    problems->push_back(
        {"recompute", "is \"" + config.recompute() + "\"; valid: none, selective, full"});
  }
  rpc::ValidateRange("kernels.threads", config.kernels().threads(), 1, 1024, "", problems);
  rpc::ValidateRange("max_pack_tokens", config.max_pack_tokens(), 2048, 1 << 20, "", problems);
}

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
  spec.fill_defaults = titan::services::FillDefaults;
  spec.validate = titan::services::Validate;
  spec.create = titan::services::Create;
  return titan::rpc::DaemonMain<titan::config::v1::TrainerConfig>(argc, argv, std::move(spec));
}
