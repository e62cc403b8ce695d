// SPDX-License-Identifier: Apache-2.0
//
// WeightStorePort by gRPC, and the two calls that the daemon makes on its own account: the epoch at
// the start, and whether the store is there. Control strand only.
#ifndef TITAN_SERVICES_ORCHESTRATOR_WEIGHT_STORE_PORT_H_
#define TITAN_SERVICES_ORCHESTRATOR_WEIGHT_STORE_PORT_H_

#include <functional>
#include <memory>
#include <string>

#include "orchestrator/ports.h"
#include "services/orchestrator/port_context.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"

namespace titan::orchestrator {

class GrpcWeightStorePort final : public WeightStorePort {
 public:
  // `context` must outlive the port. InvalidArgument: the address.
  static StatusOr<std::unique_ptr<GrpcWeightStorePort>> Create(PortContext& context,
                                                               const std::string& address);

  void Pin(const PinEvaluation& action) override;
  void Unpin(const UnpinEvaluation& action) override;
  void End(const std::string& run_id, std::function<void()> done) override;

  void AdvanceEpoch(const std::string& request_id, std::function<void(StatusOr<uint64_t>)> done);
  // OK when the store answers, whatever it says.
  void Probe(std::function<void(Status)> done);

 private:
  using Service = weightstore::v1::WeightStoreService;
  GrpcWeightStorePort(PortContext& context, std::unique_ptr<Service::StubInterface> stub)
      : context_(context), stub_(std::move(stub)) {}

  PortContext& context_;
  const std::unique_ptr<Service::StubInterface> stub_;
  uint64_t next_request_ = 1;
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_WEIGHT_STORE_PORT_H_
