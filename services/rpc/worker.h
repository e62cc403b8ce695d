// SPDX-License-Identifier: Apache-2.0
//
// A worker's tie to the orchestrator: registers, sends heartbeats, registers again when it was
// forgotten (NOT_FOUND) or when the orchestrator comes back. Lives on the control strand.
#ifndef TITAN_SERVICES_RPC_WORKER_H_
#define TITAN_SERVICES_RPC_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/base/status.h"
#include "services/rpc/daemon.h"
#include "services/rpc/wait_notice.h"
#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"

namespace titan::rpc {

// Everything on the control strand. Start() once, Stop() before destruction (from Drain).
class WorkerAgent {
 public:
  struct Options {
    std::string orchestrator_address;
    // Without the identity, which the agent fills in: contract, capacities, graders.
    orchestrator::v1::RegisterWorkerRequest registration;
    // After each registration, with the orchestrator's epoch. May be empty.
    std::function<void(uint64_t orchestrator_epoch)> on_registered;
  };

  // `context` must outlive the agent.
  static StatusOr<std::unique_ptr<WorkerAgent>> Create(DaemonContext& context, Options options);
  ~WorkerAgent();

  // Runs until Stop(): sets the daemon ready when registered and not ready when the orchestrator is
  // lost. A refusal of what this worker is (INVALID_ARGUMENT, FAILED_PRECONDITION: its contract
  // differs, ALREADY_EXISTS: another process has its worker id) ends the daemon with the reason.
  // A registration that fails otherwise is tried again until it works; the log says so after a few
  // seconds and then once a minute.
  void Start();
  // Ends the loop; returns when it has ended.
  asio::awaitable<void> Stop();

  bool registered() const { return registered_; }

 private:
  WorkerAgent(DaemonContext& context, Options options, std::shared_ptr<grpc::Channel> channel);
  asio::awaitable<void> Loop();
  asio::awaitable<bool> Register();   // false: try again later
  asio::awaitable<bool> Heartbeat();  // false: register again
  asio::awaitable<void> Sleep(Milliseconds time);

  DaemonContext& context_;
  const Options options_;
  const std::unique_ptr<orchestrator::v1::OrchestratorService::StubInterface> stub_;
  asio::steady_timer timer_;
  Milliseconds heartbeat_{1000};
  bool registered_ = false;
  bool stopping_ = false;
  bool running_ = false;
  WaitNotice notice_;  // of registrations that fail
  runtime::Counter registrations_;
};

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_WORKER_H_
