// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/weight_store_port.h"

#include <memory>
#include <utility>

#include <boost/asio/steady_timer.hpp>

namespace titan::orchestrator {

namespace pb = weightstore::v1;
using Async = pb::WeightStoreService::StubInterface::async_interface;

namespace {

constexpr rpc::Milliseconds kEndRetry{500};

// The store did not answer.
bool Silent(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded || status.code() == StatusCode::kCancelled;
}

}  // namespace

StatusOr<std::unique_ptr<GrpcWeightStorePort>> GrpcWeightStorePort::Create(
    PortContext& context, const std::string& address) {
  const auto channel = rpc::MakeChannel(address);
  if (!channel.ok()) return Annotate(channel.status(), "weightstore_address");
  return std::unique_ptr<GrpcWeightStorePort>(
      new GrpcWeightStorePort(context, Service::NewStub(*channel)));
}

void GrpcWeightStorePort::Pin(const PinEvaluation& action) {
  pb::PinForEvaluationRequest request;
  request.set_request_id(action.run_id + "-pin-" + std::to_string(next_request_++));
  request.set_run_id(action.run_id);
  request.set_version(action.version);
  rpc::CallUnaryThen(context_.client, *stub_, &Async::PinForEvaluation, std::move(request),
                     context_.BulkDeadline(),
                     [this, run_id = action.run_id,
                      version = action.version](StatusOr<pb::PinForEvaluationResponse> reply) {
                       context_.deliver(EvaluationPinned{run_id, version, reply.status()});
                     });
}

void GrpcWeightStorePort::Unpin(const UnpinEvaluation& action) {
  pb::UnpinEvaluationRequest request;
  request.set_request_id(action.run_id + "-unpin-" + std::to_string(next_request_++));
  request.set_run_id(action.run_id);
  request.set_version(action.version);
  rpc::CallUnaryThen(context_.client, *stub_, &Async::UnpinEvaluation, std::move(request),
                     context_.rpc_deadline,
                     [this, run_id = action.run_id,
                      version = action.version](StatusOr<pb::UnpinEvaluationResponse> reply) {
                       context_.deliver(EvaluationUnpinned{run_id, version, reply.status()});
                     });
}

void GrpcWeightStorePort::End(const std::string& run_id, std::function<void()> done) {
  pb::EndRunRequest request;
  request.set_request_id(run_id + "-end");
  request.set_run_id(run_id);
  rpc::CallUnaryThen(
      context_.client, *stub_, &Async::EndRun, std::move(request), context_.BulkDeadline(),
      [this, run_id, done = std::move(done)](StatusOr<pb::EndRunResponse> reply) {
        if (context_.stopping()) return;  // not ended, not to be tried again: the next life does
        if (!Silent(reply.status())) {
          done();
          return;
        }
        auto timer = std::make_shared<asio::steady_timer>(context_.client.control(), kEndRetry);
        timer->async_wait(
            [this, run_id, done, timer](boost::system::error_code) { End(run_id, done); });
      });
}

void GrpcWeightStorePort::AdvanceEpoch(const std::string& request_id,
                                       std::function<void(StatusOr<uint64_t>)> done) {
  pb::AdvanceOrchestratorEpochRequest request;
  request.set_request_id(request_id);
  rpc::CallUnaryThen(
      context_.client, *stub_, &Async::AdvanceOrchestratorEpoch, std::move(request),
      context_.rpc_deadline,
      [done = std::move(done)](StatusOr<pb::AdvanceOrchestratorEpochResponse> reply) {
        if (reply.ok()) {
          done(reply->epoch());
        } else {
          done(reply.status());
        }
      });
}

void GrpcWeightStorePort::Probe(std::function<void(Status)> done) {
  pb::ListVersionsRequest request;
  request.set_run_id("probe");
  rpc::CallUnaryThen(context_.client, *stub_, &Async::ListVersions, std::move(request),
                     context_.rpc_deadline,
                     [done = std::move(done)](StatusOr<pb::ListVersionsResponse> reply) {
                       done(Silent(reply.status()) ? reply.status() : OkStatus());
                     });
}

}  // namespace titan::orchestrator
