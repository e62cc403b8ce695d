// SPDX-License-Identifier: Apache-2.0
//
// What the gRPC ports of the orchestrator share. Everything on the control strand.
#ifndef TITAN_SERVICES_ORCHESTRATOR_PORT_CONTEXT_H_
#define TITAN_SERVICES_ORCHESTRATOR_PORT_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <boost/asio/post.hpp>

#include "core/base/status.h"
#include "orchestrator/events.h"
#include "orchestrator/worker_registry.h"
#include "services/orchestrator/prompts.h"
#include "services/rpc/channel.h"
#include "services/rpc/rpc_client.h"

namespace titan::orchestrator {

namespace asio = rpc::asio;

// What a reward service said about itself.
struct RewardDescription {
  uint32_t max_batch_items = 1;
  std::map<std::string, std::string> grader_versions;
};

struct PortContext {
  rpc::RpcClient& client;  // must outlive the ports
  const WorkerRegistry& workers;
  rpc::Milliseconds rpc_deadline;
  uint64_t epoch = 0;                         // of this orchestrator; 0: not known yet
  std::function<void(const Event&)> deliver;  // to the driver
  // A worker or the weight store is known to be gone, and why.
  std::function<void(const WorkerName&, const std::string&)> lost;
  std::function<void(const std::string&)> store_lost;
  std::function<bool()> stopping;  // this process ends, which cancels its calls
  std::string weightstore_address;
  std::map<std::string, PreparedData> runs;  // by run id, while the job lives
  std::map<WorkerName, RewardDescription> rewards;

  // Loading, pinning and keeping move a whole version.
  rpc::Milliseconds BulkDeadline() const { return rpc_deadline * 6; }

  // Answers without a call, but not from inside the port.
  void DeliverLater(Event event) {
    asio::post(client.control(), [deliver = deliver, event = std::move(event)] { deliver(event); });
  }
};

// Stubs by life of a worker. Service is for example generator::v1::GeneratorService. A stub must be
// kept until its calls are done.
template <typename Service>
class StubCache {
 public:
  using Stub = typename Service::StubInterface;

  // Unavailable: this life is not registered (any more).
  StatusOr<std::shared_ptr<Stub>> Get(const WorkerRegistry& workers, const WorkerName& name) {
    const WorkerRecord* record = workers.Find(name.worker_id);
    if (record == nullptr || record->ready.name != name) {
      stubs_.erase(name);
      return Unavailable(name.worker_id + " is gone");
    }
    std::shared_ptr<Stub>& stub = stubs_[name];
    if (stub == nullptr) {
      TITAN_ASSIGN_OR_RETURN(const auto channel, rpc::MakeChannel(record->address));
      stub = Service::NewStub(channel);
    }
    return stub;
  }
  void Forget(const WorkerName& name) { stubs_.erase(name); }

 private:
  std::map<WorkerName, std::shared_ptr<Stub>> stubs_;
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_PORT_CONTEXT_H_
