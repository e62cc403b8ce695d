// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/worker.h"

#include <algorithm>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/base/check.h"
#include "core/runtime/log.h"
#include "core/runtime/machine.h"
#include "services/rpc/channel.h"

namespace titan::rpc {

using orchestrator::v1::HeartbeatRequest;
using orchestrator::v1::OrchestratorService;
using orchestrator::v1::RegisterWorkerRequest;
using Async = OrchestratorService::StubInterface::async_interface;

namespace {

constexpr Milliseconds kCallDeadline{2000};
constexpr Milliseconds kRetryFirst{100};
constexpr Milliseconds kRetryMax{2000};

}  // namespace

StatusOr<std::unique_ptr<WorkerAgent>> WorkerAgent::Create(DaemonContext& context,
                                                           Options options) {
  auto channel = MakeChannel(options.orchestrator_address);
  if (!channel.ok()) return channel.status();
  return std::unique_ptr<WorkerAgent>(new WorkerAgent(context, std::move(options), *channel));
}

WorkerAgent::WorkerAgent(DaemonContext& context, Options options,
                         std::shared_ptr<grpc::Channel> channel)
    : context_(context),
      options_(std::move(options)),
      stub_(OrchestratorService::NewStub(channel)),
      timer_(context.control),
      registrations_(
          context.metrics.AddCounter("titan_worker_registrations_total",
                                     "Times this process registered at the orchestrator")) {}

WorkerAgent::~WorkerAgent() { TITAN_CHECK(!running_); }

void WorkerAgent::Start() {
  TITAN_CHECK(!running_ && !stopping_);
  running_ = true;
  asio::co_spawn(context_.control, Loop(), [this](std::exception_ptr) {
    running_ = false;
    timer_.cancel();
  });
}

asio::awaitable<void> WorkerAgent::Stop() {
  stopping_ = true;
  timer_.cancel();
  asio::steady_timer poll(context_.control);
  while (running_) {
    poll.expires_after(Milliseconds(5));
    boost::system::error_code ignored;
    co_await poll.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<void> WorkerAgent::Sleep(Milliseconds time) {
  if (stopping_) co_return;
  timer_.expires_after(time);
  boost::system::error_code ignored;
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<void> WorkerAgent::Loop() {
  Milliseconds retry = kRetryFirst;
  while (!stopping_) {
    if (!registered_) {
      if (co_await Register()) {
        retry = kRetryFirst;
      } else {
        co_await Sleep(retry);
        retry = std::min(retry * 2, kRetryMax);
      }
      continue;
    }
    co_await Sleep(heartbeat_);
    if (stopping_) break;
    if (!co_await Heartbeat()) {
      registered_ = false;
      context_.set_ready(false, "not registered at the orchestrator");
    }
  }
}

asio::awaitable<bool> WorkerAgent::Register() {
  RegisterWorkerRequest request = options_.registration;
  *request.mutable_worker() = context_.Identity();
  request.set_machine(runtime::MemoryName());
  const auto reply =
      co_await CallUnary(context_.client, *stub_, &Async::RegisterWorker, request, kCallDeadline);
  if (stopping_) co_return false;
  if (!reply.ok()) {
    const StatusCode code = reply.status().code();
    if (code == StatusCode::kInvalidArgument || code == StatusCode::kFailedPrecondition ||
        code == StatusCode::kAlreadyExists) {
      context_.request_shutdown(Annotate(reply.status(), "the orchestrator refuses this worker"));
      stopping_ = true;
    } else {
      context_.set_ready(false, "cannot register: " + MessageOf(reply.status()));
      if (const Instant now = context_.clock.Now(); notice_.Due(now)) {
        TITAN_LOG(kWarning, "not_registered", {"orchestrator", options_.orchestrator_address},
                  {"waited_s", notice_.Waited(now).count()}, {"status", reply.status()},
                  {"next", "tries again until the orchestrator answers"});
      }
    }
    co_return false;
  }
  registered_ = true;
  notice_.Over();
  registrations_.Add();
  heartbeat_ = Milliseconds(std::clamp<uint32_t>(reply->heartbeat_ms(), 10, 60000));
  TITAN_LOG(kInfo, "registered", {"orchestrator", options_.orchestrator_address},
            {"epoch", reply->orchestrator_epoch()}, {"heartbeat_ms", heartbeat_.count()});
  if (options_.on_registered) options_.on_registered(reply->orchestrator_epoch());
  context_.set_ready(true, "");
  co_return true;
}

asio::awaitable<bool> WorkerAgent::Heartbeat() {
  HeartbeatRequest request;
  *request.mutable_worker() = context_.Identity();
  const auto reply =
      co_await CallUnary(context_.client, *stub_, &Async::Heartbeat, request, kCallDeadline);
  if (reply.ok()) co_return true;
  if (!stopping_) TITAN_LOG(kWarning, "heartbeat_failed", {"status", reply.status()});
  co_return false;
}

}  // namespace titan::rpc
