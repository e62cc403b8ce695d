// SPDX-License-Identifier: Apache-2.0
//
// RewardPort by gRPC: decodes replies, cuts requests to what the service and a message take.
// Control strand only.
#ifndef TITAN_SERVICES_ORCHESTRATOR_REWARD_PORT_H_
#define TITAN_SERVICES_ORCHESTRATOR_REWARD_PORT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "orchestrator/job_spec.h"
#include "orchestrator/ports.h"
#include "services/orchestrator/port_context.h"
#include "titan/reward/v1/reward.grpc.pb.h"

namespace titan::orchestrator {

class GrpcRewardPort final : public RewardPort {
 public:
  // `context` must outlive the port.
  explicit GrpcRewardPort(PortContext& context) : context_(context) {}

  void Send(const Score& action) override;

  // Asks a service that registers for its limits and versions (kept in the context); then `done`.
  void Describe(const WorkerName& name, std::function<void(Status)> done);
  void Forget(const WorkerName& name);

  struct Checked {
    std::vector<FieldProblem> problems;  // of the spec's reward part: the job could not be scored
    std::vector<std::string> warnings;
  };
  // What the registered services say to a job's reward before it starts: whether one has the
  // grader, and whether that takes the parameters and the data, by scoring an empty reply to some
  // rows once. A service that does not answer is no problem here.
  asio::awaitable<Checked> Check(std::shared_ptr<const JobSpec> spec,
                                 std::shared_ptr<const PreparedData> data);

 private:
  using Stub = reward::v1::RewardService::StubInterface;

  void Remember(const WorkerName& name, const reward::v1::DescribeResponse& description);

  PortContext& context_;
  StubCache<reward::v1::RewardService> stubs_;
  uint64_t num_checks_ = 0;
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_REWARD_PORT_H_
