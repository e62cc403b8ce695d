// SPDX-License-Identifier: Apache-2.0
//
// OrchestratorService: every call goes to the daemon on the control strand.
#ifndef TITAN_SERVICES_ORCHESTRATOR_SERVICE_H_
#define TITAN_SERVICES_ORCHESTRATOR_SERVICE_H_

#include "services/orchestrator/daemon.h"
#include "services/rpc/rpc_server.h"

namespace titan::orchestrator {

class OrchestratorDaemon::Service final : public v1::OrchestratorService::CallbackService {
 public:
  // Both must outlive the service.
  Service(OrchestratorDaemon& daemon, rpc::RpcServer& server) : daemon_(daemon), server_(server) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* RegisterWorker(grpc::CallbackServerContext* context,
                                           const v1::RegisterWorkerRequest* request,
                                           v1::RegisterWorkerResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* CheckJob(grpc::CallbackServerContext* context,
                                     const v1::CheckJobRequest* request,
                                     v1::CheckJobResponse* response) override;
  grpc::ServerWriteReactor<v1::ListRolloutsResponse>* ListRollouts(
      grpc::CallbackServerContext* context, const v1::ListRolloutsRequest* request) override;
  grpc::ServerWriteReactor<v1::ChatResponse>* Chat(grpc::CallbackServerContext* context,
                                                   const v1::ChatRequest* request) override;
  grpc::ServerReadReactor<v1::UploadDataRequest>* UploadData(
      grpc::CallbackServerContext* context, v1::UploadDataResponse* response) override;
  grpc::ServerUnaryReactor* ListData(grpc::CallbackServerContext* context,
                                     const v1::ListDataRequest* request,
                                     v1::ListDataResponse* response) override;
  grpc::ServerUnaryReactor* RemoveData(grpc::CallbackServerContext* context,
                                       const v1::RemoveDataRequest* request,
                                       v1::RemoveDataResponse* response) override;

 private:
  OrchestratorDaemon& daemon_;
  rpc::RpcServer& server_;
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_SERVICE_H_
