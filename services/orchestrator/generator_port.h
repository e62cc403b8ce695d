// SPDX-License-Identifier: Apache-2.0
//
// GeneratorPort by gRPC: versions, rollout streams, and putting the chunks of a sample together.
// Control strand only.
#ifndef TITAN_SERVICES_ORCHESTRATOR_GENERATOR_PORT_H_
#define TITAN_SERVICES_ORCHESTRATOR_GENERATOR_PORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "orchestrator/ports.h"
#include "services/orchestrator/port_context.h"
#include "titan/generator/v1/generator.grpc.pb.h"

namespace titan::orchestrator {

class GrpcGeneratorPort final : public GeneratorPort {
 public:
  // `context` must outlive the port.
  explicit GrpcGeneratorPort(PortContext& context) : context_(context) {}

  void Load(const LoadVersion& action) override;
  void Release(const ReleaseVersion& action) override;
  void Start(const StartRollout& action) override;
  void Cancel(const CancelRollouts& action) override;
  void Reset(const ResetGenerator& action) override;

  // Ends the streams of a worker that is gone.
  void Forget(const WorkerName& name);
  // Asks a generator that registers what it holds and has it give everything back, so that its next
  // orders begin from nothing; then `done` with the first failure.
  void Reset(const WorkerName& name, std::function<void(Status)> done);

 private:
  using Service = generator::v1::GeneratorService;
  using Key = std::tuple<std::string, GroupId, uint32_t>;  // run, group, attempt
  struct Stream {
    WorkerName worker;
    rpc::StreamHandle handle;
    uint32_t max_new_tokens = 0;
    std::map<uint32_t, std::shared_ptr<Reply>> parts;  // by sample index
    Status failure;                                    // why the stream was cut off here
  };
  void OnChunk(const Key& key, const generator::v1::GenerateGroupResponse& chunk);
  void OnStreamDone(const Key& key, Status status);

  PortContext& context_;
  StubCache<Service> stubs_;
  std::map<Key, Stream> streams_;
  uint64_t next_request_ = 1;
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_GENERATOR_PORT_H_
