// SPDX-License-Identifier: Apache-2.0
//
// titan-generator: makes samples under committed weight versions.
//
//   gRPC threads -> control strand (service, versions held) -> engine thread (forward, sampling;
//   kernel pool)
//                                  '-> blocking pool (leases, maps)
#include <thread>

#include "core/kernels/isa.h"
#include "core/runtime/log.h"
#include "services/generator/generator_service.h"
#include "services/rpc/daemon.h"
#include "services/weightstore_client/grpc_leader.h"

namespace titan::services {
namespace {

using config::v1::GeneratorConfig;

void FillDefaults(GeneratorConfig* config) {
  config->mutable_kernels()->set_threads(std::max(1u, std::thread::hardware_concurrency()));
  config->mutable_kernels()->set_isa("auto");
  config->set_max_versions(3);
  config->set_max_running_sequences(64);
  config->set_max_batch_tokens(512);
  config->set_kv_cache_bytes(uint64_t{512} << 20);
  config->set_max_queued_groups(256);
}

void Validate(const GeneratorConfig& config, rpc::ConfigProblems* problems) {
  rpc::ValidatePeerAddress("orchestrator_address", config.orchestrator_address(), problems);
  rpc::ValidatePeerAddress("weightstore_address", config.weightstore_address(), problems);
  if (config.weightstore_socket().empty()) {
    problems->push_back({"weightstore_socket", "is required: path of the store's unix socket"});
  }
  const auto range = [problems](const char* path, uint64_t value, uint64_t low, uint64_t high) {
    rpc::ValidateRange(path, value, low, high, "", problems);
  };
  range("kernels.threads", config.kernels().threads(), 1, 1024);
  range("max_versions", config.max_versions(), 1, 64);
  range("max_running_sequences", config.max_running_sequences(), 1, 65536);
  range("max_batch_tokens", config.max_batch_tokens(), config.max_running_sequences(), 1 << 20);
  range("kv_cache_bytes", config.kv_cache_bytes(), 1 << 16, uint64_t{1} << 44);
  range("max_queued_groups", config.max_queued_groups(), 1, 1 << 20);
}

StatusOr<std::unique_ptr<rpc::DaemonService>> Create(const GeneratorConfig& config,
                                                     rpc::DaemonContext& context) {
  TITAN_RETURN_IF_ERROR(kernels::SetIsa(config.kernels().isa()));
  TITAN_LOG(kInfo, "kernels_selected", {"isa", kernels::CurrentIsaName()},
            {"threads", config.kernels().threads()});
  TITAN_ASSIGN_OR_RETURN(
      auto leader, weightstore::GrpcLeader::Create(context.client, config.weightstore_address()));
  return std::make_unique<GeneratorService>(config, std::move(leader), context);
}

}  // namespace
}  // namespace titan::services

int main(int argc, char** argv) {
  titan::rpc::DaemonSpec<titan::config::v1::GeneratorConfig> spec;
  spec.role = "generator";
  spec.description = "Makes samples under committed weight versions.";
  spec.worker_role = titan::type::v1::WORKER_ROLE_GENERATOR;
  spec.fill_defaults = titan::services::FillDefaults;
  spec.validate = titan::services::Validate;
  spec.create = titan::services::Create;
  return titan::rpc::DaemonMain<titan::config::v1::GeneratorConfig>(argc, argv, std::move(spec));
}
