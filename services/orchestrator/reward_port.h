// SPDX-License-Identifier: Apache-2.0
//
// RewardPort by gRPC: decodes replies, cuts requests to what the service and a message take.
// Control strand only.
#ifndef TITAN_SERVICES_ORCHESTRATOR_REWARD_PORT_H_
#define TITAN_SERVICES_ORCHESTRATOR_REWARD_PORT_H_

#include <functional>

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

 private:
  PortContext& context_;
  StubCache<reward::v1::RewardService> stubs_;
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_REWARD_PORT_H_
