// SPDX-License-Identifier: Apache-2.0
//
// titan-generator: makes samples under committed weight versions.
//
//   gRPC threads -> control strand (service, versions held) -> engine thread (forward, sampling;
//   kernel pool)
//                                  '-> blocking pool (leases, maps)
#include "core/kernels/isa.h"
#include "core/runtime/log.h"
#include "services/generator/generator_service.h"
#include "services/generator/pull_lane.h"
#include "services/rpc/daemon.h"
#include "services/settings/daemon_spec.h"
#include "services/weightstore_client/grpc_leader.h"

namespace titan::services {
namespace {

using config::v1::GeneratorConfig;

StatusOr<std::unique_ptr<rpc::DaemonService>> Create(const GeneratorConfig& config,
                                                     rpc::DaemonContext& context) {
  TITAN_RETURN_IF_ERROR(kernels::SetIsa(config.kernels().isa()));
  TITAN_LOG(kInfo, "kernels_selected", {"isa", kernels::CurrentIsaName()},
            {"threads", config.kernels().threads()});
  TITAN_ASSIGN_OR_RETURN(
      auto leader, weightstore::GrpcLeader::Create(context.client, config.weightstore_address()));
  TITAN_ASSIGN_OR_RETURN(auto rma, OpenPullLane(config, context.metrics));
  auto service =
      std::make_unique<GeneratorService>(config, std::move(leader), context, std::move(rma));
  TITAN_ASSIGN_OR_RETURN(
      auto watch,
      weightstore::VersionWatch::Create(
          context.client, config.weightstore_address(),
          [service = service.get()](const std::string& run_id, std::optional<uint64_t> version,
                                    weightstore::VersionWatch::Change change) {
            service->OnChange(run_id, version, change);
          }));
  service->SetWatch(std::move(watch));
  return std::unique_ptr<rpc::DaemonService>(std::move(service));
}

}  // namespace
}  // namespace titan::services

int main(int argc, char** argv) {
  titan::rpc::DaemonSpec<titan::config::v1::GeneratorConfig> spec;
  spec.role = "generator";
  spec.description = "Makes samples under committed weight versions.";
  spec.worker_role = titan::type::v1::WORKER_ROLE_GENERATOR;
  titan::settings::UseSettings(&spec);
  spec.create = titan::services::Create;
  return titan::rpc::DaemonMain<titan::config::v1::GeneratorConfig>(argc, argv, std::move(spec));
}
