// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/service.h"

#include <utility>

namespace titan::orchestrator {
namespace {

constexpr size_t kWatchQueue =
    64;  // events that wait for a slow watcher; the rest stays in the log

constexpr size_t kRolloutQueue = 4;  // messages of up to 1 MiB
constexpr size_t kChatQueue = 4096;  // parts of one reply; none is dropped

}  // namespace

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::SubmitJob(
    grpc::CallbackServerContext* context, const v1::SubmitJobRequest* request,
    v1::SubmitJobResponse* response) {
  return rpc::ServeUnary(server_, context, request, response, [this](v1::SubmitJobRequest r) {
    return daemon_.SubmitJob(std::move(r));
  });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::GetJob(grpc::CallbackServerContext* context,
                                                              const v1::GetJobRequest* request,
                                                              v1::GetJobResponse* response) {
  return rpc::ServeUnary(server_, context, request, response,
                         [this](v1::GetJobRequest r) { return daemon_.GetJob(std::move(r)); });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::ListJobs(
    grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
    v1::ListJobsResponse* response) {
  return rpc::ServeUnary(server_, context, request, response,
                         [this](const v1::ListJobsRequest&) { return daemon_.ListJobs(); });
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* OrchestratorDaemon::Service::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return rpc::ServeStream<v1::WatchJobResponse>(
      server_, context, request, kWatchQueue,
      [this](v1::WatchJobRequest r,
             std::shared_ptr<rpc::ResponseStream<v1::WatchJobResponse>> out) {
        return daemon_.WatchJob(std::move(r), std::move(out));
      });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::CancelJob(
    grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
    v1::CancelJobResponse* response) {
  return rpc::ServeUnary(server_, context, request, response, [this](v1::CancelJobRequest r) {
    return daemon_.CancelJob(std::move(r));
  });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::RegisterWorker(
    grpc::CallbackServerContext* context, const v1::RegisterWorkerRequest* request,
    v1::RegisterWorkerResponse* response) {
  return rpc::ServeUnaryThen(server_, context, request, response,
                             [this](const v1::RegisterWorkerRequest& r, const auto& reply) {
                               daemon_.RegisterWorker(r, reply);
                             });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::Heartbeat(
    grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
    v1::HeartbeatResponse* response) {
  return rpc::ServeUnaryThen(
      server_, context, request, response,
      [this](const v1::HeartbeatRequest& r, const auto& reply) { reply(daemon_.Heartbeat(r)); });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::ListWorkers(
    grpc::CallbackServerContext* context, const v1::ListWorkersRequest* request,
    v1::ListWorkersResponse* response) {
  return rpc::ServeUnaryThen(
      server_, context, request, response,
      [this](const v1::ListWorkersRequest&, const auto& reply) { reply(daemon_.ListWorkers()); });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::CheckJob(
    grpc::CallbackServerContext* context, const v1::CheckJobRequest* request,
    v1::CheckJobResponse* response) {
  return rpc::ServeUnary(server_, context, request, response,
                         [this](v1::CheckJobRequest r) { return daemon_.CheckJob(std::move(r)); });
}

grpc::ServerWriteReactor<v1::ListRolloutsResponse>* OrchestratorDaemon::Service::ListRollouts(
    grpc::CallbackServerContext* context, const v1::ListRolloutsRequest* request) {
  return rpc::ServeStream<v1::ListRolloutsResponse>(
      server_, context, request, kRolloutQueue,
      [this](v1::ListRolloutsRequest r,
             std::shared_ptr<rpc::ResponseStream<v1::ListRolloutsResponse>> out) {
        return daemon_.ListRollouts(std::move(r), std::move(out));
      });
}

grpc::ServerWriteReactor<v1::ChatResponse>* OrchestratorDaemon::Service::Chat(
    grpc::CallbackServerContext* context, const v1::ChatRequest* request) {
  return rpc::ServeStream<v1::ChatResponse>(
      server_, context, request, kChatQueue,
      [this](v1::ChatRequest r, std::shared_ptr<rpc::ResponseStream<v1::ChatResponse>> out) {
        return daemon_.Chat(std::move(r), std::move(out));
      });
}

grpc::ServerReadReactor<v1::UploadDataRequest>* OrchestratorDaemon::Service::UploadData(
    grpc::CallbackServerContext* context, v1::UploadDataResponse* response) {
  return rpc::ServeClientStream<v1::UploadDataRequest>(
      server_, context, response,
      [this](std::shared_ptr<rpc::RequestStream<v1::UploadDataRequest>> in) {
        return daemon_.UploadData(std::move(in));
      });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::ListData(
    grpc::CallbackServerContext* context, const v1::ListDataRequest* request,
    v1::ListDataResponse* response) {
  return rpc::ServeUnary(server_, context, request, response,
                         [this](const v1::ListDataRequest&) { return daemon_.ListData(); });
}

grpc::ServerUnaryReactor* OrchestratorDaemon::Service::RemoveData(
    grpc::CallbackServerContext* context, const v1::RemoveDataRequest* request,
    v1::RemoveDataResponse* response) {
  return rpc::ServeUnary(server_, context, request, response, [this](v1::RemoveDataRequest r) {
    return daemon_.RemoveData(std::move(r));
  });
}

}  // namespace titan::orchestrator
