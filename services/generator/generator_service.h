// SPDX-License-Identifier: Apache-2.0
//
// titan.generator.v1.GeneratorService: validates and converts messages, hands work to ModelHost's
// engine.
#ifndef TITAN_SERVICES_GENERATOR_GENERATOR_SERVICE_H_
#define TITAN_SERVICES_GENERATOR_GENERATOR_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/steady_timer.hpp>

#include "core/base/status.h"
#include "generator/engine.h"
#include "services/generator/model_host.h"
#include "services/rpc/daemon.h"
#include "services/rpc/rpc_server.h"
#include "services/rpc/worker.h"
#include "services/weightstore_client/version_watch.h"
#include "titan/generator/v1/generator.grpc.pb.h"
#include "titan/type/v1/types.pb.h"

namespace titan::services {

// A request as the engine takes it. InvalidArgument names the field.
StatusOr<generator::GroupRequest> ParseGroupRequest(
    const generator::v1::GenerateGroupRequest& message);

// A finished sample in chunks of at most 1 MiB.
std::vector<generator::v1::GenerateGroupResponse> ToResponses(const generator::SampleResult& result,
                                                              PolicyVersion version);

class GeneratorService final : public generator::v1::GeneratorService::CallbackService,
                               public rpc::DaemonService {
 public:
  // context must outlive the service. rma: OpenPullLane's.
  GeneratorService(const config::v1::GeneratorConfig& config,
                   std::unique_ptr<weightstore::LeaderPort> leader, rpc::DaemonContext& context,
                   std::shared_ptr<transport::RmaDomain> rma);
  // The store's word on a version, or on a run, which counts if it is held. Retired: it is given
  // back once no sample uses it. Moved: what is kept without a lease is asked for again.
  void OnChange(const std::string& run_id, std::optional<uint64_t> version,
                weightstore::VersionWatch::Change change);
  // Of the runs whose versions are held; it is told when these change.
  void SetWatch(std::unique_ptr<weightstore::VersionWatch> watch) { watch_ = std::move(watch); }

  std::vector<grpc::Service*> services() override { return {this}; }
  rpc::asio::awaitable<Status> Start() override;
  rpc::asio::awaitable<void> Drain() override;

  grpc::ServerUnaryReactor* LoadVersion(grpc::CallbackServerContext* context,
                                        const generator::v1::LoadVersionRequest* request,
                                        generator::v1::LoadVersionResponse* response) override;
  grpc::ServerUnaryReactor* ReleaseVersion(
      grpc::CallbackServerContext* context, const generator::v1::ReleaseVersionRequest* request,
      generator::v1::ReleaseVersionResponse* response) override;
  grpc::ServerWriteReactor<generator::v1::GenerateGroupResponse>* GenerateGroup(
      grpc::CallbackServerContext* context,
      const generator::v1::GenerateGroupRequest* request) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const generator::v1::GetStatusRequest* request,
                                      generator::v1::GetStatusResponse* response) override;

 private:
  using Stream = rpc::ResponseStream<generator::v1::GenerateGroupResponse>;

  // Aborted: the call is of an orchestrator that was replaced.
  Status CheckEpoch(uint64_t epoch);
  // Held versions have changed.
  void OnHeld();
  // Until Drain: mapped versions outlive the store's daemon.
  rpc::asio::awaitable<void> KeepHeld();
  void ReleaseLater(const generator::VersionKey& key);
  void Generate(const generator::v1::GenerateGroupRequest& request, std::shared_ptr<Stream> stream);

  const config::v1::GeneratorConfig config_;
  rpc::DaemonContext& context_;
  const std::unique_ptr<weightstore::LeaderPort> leader_;
  ModelHost host_;
  const type::v1::ContractDigest contract_;  // made before there are calls that want the pool
  std::unique_ptr<weightstore::VersionWatch> watch_;
  std::unique_ptr<rpc::WorkerAgent> agent_;
  uint64_t epoch_ = 0;
  boost::asio::steady_timer keep_timer_;  // control strand only, like draining_
  bool draining_ = false;
  runtime::Counter tokens_;
  runtime::Counter samples_;
  runtime::Counter groups_;
  runtime::Gauge versions_;
};

}  // namespace titan::services

#endif  // TITAN_SERVICES_GENERATOR_GENERATOR_SERVICE_H_
