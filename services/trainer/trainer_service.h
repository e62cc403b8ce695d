// SPDX-License-Identifier: Apache-2.0
//
// titan.trainer.v1.TrainerService: validates and converts messages; the work is TrainJob's, on one
// engine thread.
#ifndef TITAN_SERVICES_TRAINER_TRAINER_SERVICE_H_
#define TITAN_SERVICES_TRAINER_TRAINER_SERVICE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/runtime/blocking_pool.h"
#include "services/rpc/daemon.h"
#include "services/rpc/rpc_server.h"
#include "services/rpc/worker.h"
#include "services/trainer/train_job.h"
#include "services/weightstore_client/grpc_leader.h"
#include "titan/trainer/v1/trainer.grpc.pb.h"
#include "titan/type/v1/types.pb.h"
#include "weightstore/transport/puller.h"

namespace titan::services {

class TrainerService final : public trainer::v1::TrainerService::CallbackService,
                             public rpc::DaemonService {
 public:
  // context must outlive the service.
  TrainerService(const config::v1::TrainerConfig& config,
                 std::unique_ptr<weightstore::GrpcLeader> leader, rpc::DaemonContext& context);
  ~TrainerService() override;

  std::vector<grpc::Service*> services() override { return {this}; }
  rpc::asio::awaitable<Status> Start() override;
  rpc::asio::awaitable<void> Drain() override;

  grpc::ServerUnaryReactor* StartRun(grpc::CallbackServerContext* context,
                                     const trainer::v1::StartRunRequest* request,
                                     trainer::v1::StartRunResponse* response) override;
  grpc::ServerReadReactor<trainer::v1::TrainStepRequest>* TrainStep(
      grpc::CallbackServerContext* context, trainer::v1::TrainStepResponse* response) override;
  grpc::ServerUnaryReactor* EndRun(grpc::CallbackServerContext* context,
                                   const trainer::v1::EndRunRequest* request,
                                   trainer::v1::EndRunResponse* response) override;

 private:
  using StepStream = rpc::RequestStream<trainer::v1::TrainStepRequest>;

  Status CheckEpoch(uint64_t epoch);
  // Returns once no call works on the job. Cancelled: the daemon shuts down.
  rpc::asio::awaitable<Status> WhenIdle();
  // Lets the job go, on the engine thread: its checkpointer may wait for the control strand.
  rpc::asio::awaitable<void> DropJob();
  // Any thread.
  void Count(const CheckpointOutcome& outcome);
  void CountPull(const weightstore::lanes::PullReport& report);
  rpc::asio::awaitable<StatusOr<trainer::v1::StartRunResponse>> DoStartRun(
      trainer::v1::StartRunRequest request);
  rpc::asio::awaitable<StatusOr<trainer::v1::EndRunResponse>> DoEndRun(
      trainer::v1::EndRunRequest request);
  rpc::asio::awaitable<StatusOr<trainer::v1::TrainStepResponse>> DoTrainStep(
      std::shared_ptr<StepStream> stream);

  const config::v1::TrainerConfig config_;
  rpc::DaemonContext& context_;
  const std::unique_ptr<weightstore::GrpcLeader> leader_;
  kernels::Pool pool_;
  const type::v1::ContractDigest contract_;  // made before there are calls that want the pool
  std::unique_ptr<TrainJob>
      job_;  // touched on the engine thread while busy_, else on the control strand
  bool busy_ = false;
  TrainJob* stepping_ = nullptr;  // of which a step is at work
  bool stopping_ = false;
  uint64_t starts_ = 0;               // of runs, so far
  std::set<std::string> ended_runs_;  // ids are never used again
  uint64_t epoch_ = 0;
  std::unique_ptr<rpc::WorkerAgent> agent_;
  runtime::Counter steps_;
  runtime::Counter tokens_trained_;
  runtime::Counter tokens_compared_;
  runtime::Counter tokens_differing_;
  runtime::Histogram checkpoint_seconds_;
  runtime::Gauge checkpoint_version_;
  runtime::Counter checkpoint_failures_;
  runtime::Counter pull_corrupt_;
  runtime::Gauge pull_memory_;
  runtime::BlockingPool engine_;  // one thread; last, so that it ends first
};

}  // namespace titan::services

#endif  // TITAN_SERVICES_TRAINER_TRAINER_SERVICE_H_
