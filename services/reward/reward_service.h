// SPDX-License-Identifier: Apache-2.0
//
// The gRPC face of rewards/: describes the graders of this build and scores batches. A score is a
// pure function of (grader, parameters, item), so the same request answers the same, whichever
// process serves it.
#ifndef TITAN_SERVICES_REWARD_REWARD_SERVICE_H_
#define TITAN_SERVICES_REWARD_REWARD_SERVICE_H_

#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/metrics.h"
#include "services/rpc/daemon.h"
#include "services/rpc/worker.h"
#include "titan/config/v1/daemons.pb.h"
#include "titan/reward/v1/reward.grpc.pb.h"

namespace titan::reward {

inline constexpr size_t kMaxBatchBytes = 1 << 20;

// Scores a batch here and now. NotFound: no such grader (names the nearest); InvalidArgument: bad
// parameters, an item that is not as the protocol says, or too much of them. Pure, any thread.
StatusOr<v1::ScoreResponse> ScoreBatch(const v1::ScoreRequest& request, uint32_t max_batch_items);

// Handlers run ScoreBatch on the blocking pool.
class RewardService final : public rpc::DaemonService, public v1::RewardService::CallbackService {
 public:
  // `context` must outlive the service.
  static StatusOr<std::unique_ptr<rpc::DaemonService>> Create(
      const config::v1::RewardConfig& config, rpc::DaemonContext& context);

  std::vector<grpc::Service*> services() override { return {this}; }
  rpc::asio::awaitable<Status> Start() override;
  rpc::asio::awaitable<void> Drain() override;

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;

 private:
  RewardService(const config::v1::RewardConfig& config, rpc::DaemonContext& context);
  rpc::asio::awaitable<StatusOr<v1::ScoreResponse>> ScoreOnPool(v1::ScoreRequest request);

  rpc::DaemonContext& context_;
  const uint32_t max_batch_items_;
  std::unique_ptr<rpc::WorkerAgent> agent_;
  runtime::Counter ok_;
  runtime::Counter model_faults_;
  runtime::Counter infra_faults_;
  runtime::Histogram batch_seconds_;
};

}  // namespace titan::reward

#endif  // TITAN_SERVICES_REWARD_REWARD_SERVICE_H_
