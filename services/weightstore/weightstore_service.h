// SPDX-License-Identifier: Apache-2.0
//
// The gRPC face of a Store: checks and converts messages; what blocks runs on the blocking pool.
#ifndef TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_SERVICE_H_
#define TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_SERVICE_H_

#include <functional>
#include <memory>
#include <utility>

#include "core/runtime/blocking_pool.h"
#include "core/runtime/metrics.h"
#include "services/rpc/rpc_server.h"
#include "services/weightstore_client/convert.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"
#include "weightstore/library.h"
#include "weightstore/store.h"

namespace titan::weightstore {

class WeightStoreGrpcService final : public v1::WeightStoreService::CallbackService {
 public:
  // All must outlive the service.
  WeightStoreGrpcService(rpc::RpcServer& server, runtime::BlockingPool& blocking,
                         runtime::Metrics& metrics, Store& store, Library& library);

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* RegisterTrainer(Context* context, const v1::RegisterTrainerRequest* request,
                           v1::RegisterTrainerResponse* response) override;
  Reactor* BeginVersion(Context* context, const v1::BeginVersionRequest* request,
                        v1::BeginVersionResponse* response) override;
  Reactor* PutDone(Context* context, const v1::PutDoneRequest* request,
                   v1::PutDoneResponse* response) override;
  Reactor* CommitVersion(Context* context, const v1::CommitVersionRequest* request,
                         v1::CommitVersionResponse* response) override;
  Reactor* AcquireLease(Context* context, const v1::AcquireLeaseRequest* request,
                        v1::AcquireLeaseResponse* response) override;
  Reactor* ReleaseLease(Context* context, const v1::ReleaseLeaseRequest* request,
                        v1::ReleaseLeaseResponse* response) override;
  Reactor* PinForEvaluation(Context* context, const v1::PinForEvaluationRequest* request,
                            v1::PinForEvaluationResponse* response) override;
  Reactor* UnpinEvaluation(Context* context, const v1::UnpinEvaluationRequest* request,
                           v1::UnpinEvaluationResponse* response) override;
  Reactor* ListVersions(Context* context, const v1::ListVersionsRequest* request,
                        v1::ListVersionsResponse* response) override;
  Reactor* EndRun(Context* context, const v1::EndRunRequest* request,
                  v1::EndRunResponse* response) override;
  Reactor* AdvanceOrchestratorEpoch(Context* context,
                                    const v1::AdvanceOrchestratorEpochRequest* request,
                                    v1::AdvanceOrchestratorEpochResponse* response) override;
  // What is kept on disk: store_models.cc.
  grpc::ServerReadReactor<v1::ImportModelRequest>* ImportModel(
      Context* context, v1::ImportModelResponse* response) override;
  Reactor* GetStoredModel(Context* context, const v1::GetStoredModelRequest* request,
                          v1::GetStoredModelResponse* response) override;
  Reactor* ListStoredModels(Context* context, const v1::ListStoredModelsRequest* request,
                            v1::ListStoredModelsResponse* response) override;
  Reactor* DeleteStoredModel(Context* context, const v1::DeleteStoredModelRequest* request,
                             v1::DeleteStoredModelResponse* response) override;
  Reactor* ReadBlob(Context* context, const v1::ReadBlobRequest* request,
                    v1::ReadBlobResponse* response) override;
  grpc::ServerReadReactor<v1::PutBundleRequest>* PutBundle(
      Context* context, v1::PutBundleResponse* response) override;

 private:
  rpc::asio::awaitable<StatusOr<v1::BeginVersionResponse>> Begin(v1::BeginVersionRequest request);
  rpc::asio::awaitable<StatusOr<v1::ImportModelResponse>> DoImport(
      std::shared_ptr<rpc::RequestStream<v1::ImportModelRequest>> in);
  rpc::asio::awaitable<StatusOr<v1::PutBundleResponse>> DoPutBundle(
      std::shared_ptr<rpc::RequestStream<v1::PutBundleRequest>> in);
  // Keeps the newest version of a run that ends. Unavailable: another call is at it.
  Status KeepNewest(const std::string& run_id);
  // Runs work(request) on the blocking pool and carries its reason over.
  template <typename Request, typename Response, typename Work>
  Reactor* ServeBlocking(Context* context, const Request* request, Response* response, Work work);

  rpc::RpcServer& server_;
  runtime::BlockingPool& blocking_;
  Store& store_;
  Library& library_;
  runtime::Counter ring_full_;
  runtime::Histogram verify_seconds_;
  runtime::Histogram commit_seconds_;
};

template <typename Request, typename Response, typename Work>
grpc::ServerUnaryReactor* WeightStoreGrpcService::ServeBlocking(Context* context,
                                                                const Request* request,
                                                                Response* response, Work work) {
  return rpc::ServeUnaryThen(
      server_, context, request, response,
      [this, work](Request message, std::function<void(StatusOr<Response>)> reply) {
        const Status posted = blocking_.Post([work, message = std::move(message), reply] {
          StatusOr<Response> result = work(message);
          if (!result.ok()) result = ReasonToRpc(result.status());
          reply(std::move(result));
        });
        if (!posted.ok()) reply(posted);
      });
}

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_SERVICE_H_
