// SPDX-License-Identifier: Apache-2.0
//
// TrainerPort by gRPC. A step is a stream: a header, then one sample a message. Control strand
// only.
#ifndef TITAN_SERVICES_ORCHESTRATOR_TRAINER_PORT_H_
#define TITAN_SERVICES_ORCHESTRATOR_TRAINER_PORT_H_

#include <functional>
#include <map>
#include <string>

#include "orchestrator/ports.h"
#include "services/orchestrator/port_context.h"
#include "titan/trainer/v1/trainer.grpc.pb.h"

namespace titan::orchestrator {

class GrpcTrainerPort final : public TrainerPort {
 public:
  // `context` must outlive the port.
  explicit GrpcTrainerPort(PortContext& context) : context_(context) {}

  void Start(const StartRun& action) override;
  void Train(const TrainStep& action) override;
  void End(const EndRun& action, std::function<void()> done) override;

  // Ends the steps at a worker that is gone.
  void Forget(const WorkerName& name);

 private:
  // Delivers the answer to a call; if that failed because the trainer or the weight store is gone,
  // their loss is told first.
  void DeliverFailure(const WorkerName& trainer, const Status& status, Event answer);

  PortContext& context_;
  StubCache<trainer::v1::TrainerService> stubs_;
  struct StepCall {
    WorkerName trainer;
    rpc::StreamHandle stream;
  };
  std::map<std::string, StepCall> steps_;  // in flight, by run id
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_TRAINER_PORT_H_
