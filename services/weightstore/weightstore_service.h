// SPDX-License-Identifier: Apache-2.0
//
// The gRPC face of a Leader: checks and converts messages; what blocks runs on the blocking pool.
#ifndef TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_SERVICE_H_
#define TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_SERVICE_H_

#include <functional>
#include <memory>
#include <utility>

#include "core/runtime/blocking_pool.h"
#include "core/runtime/metrics.h"
#include "services/rpc/rpc_server.h"
#include "services/weightstore/watchers.h"
#include "services/weightstore_client/convert.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"
#include "weightstore/leader.h"
#include "weightstore/library.h"

namespace titan::weightstore {

// A list ends with the entry that passes this, and the next page begins there: a message may have
// rpc::kMaxMessageBytes.
inline constexpr size_t kPageBytes = 1u << 20;

class WeightStoreGrpcService final : public v1::WeightStoreService::CallbackService {
 public:
  // All must outlive the service. `watchers` are woken by the leader (LeaderOptions::on_change).
  WeightStoreGrpcService(rpc::RpcServer& server, runtime::BlockingPool& blocking,
                         runtime::Metrics& metrics, Leader& leader, Library& library,
                         std::shared_ptr<Watchers> watchers);

  // Keeps the newest version of every run that goes on, whose memory may go with this process.
  // Control strand, after Leader::Shutdown.
  rpc::asio::awaitable<void> KeepRuns();

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* RegisterTrainer(Context* context, const v1::RegisterTrainerRequest* request,
                           v1::RegisterTrainerResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* BeginVersion(Context* context, const v1::BeginVersionRequest* request,
                        v1::BeginVersionResponse* response) override;
  Reactor* PutDone(Context* context, const v1::PutDoneRequest* request,
                   v1::PutDoneResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* CommitVersion(Context* context, const v1::CommitVersionRequest* request,
                         v1::CommitVersionResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* AcquireLease(Context* context, const v1::AcquireLeaseRequest* request,
                        v1::AcquireLeaseResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* ReleaseLease(Context* context, const v1::ReleaseLeaseRequest* request,
                        v1::ReleaseLeaseResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* PinForEvaluation(Context* context, const v1::PinForEvaluationRequest* request,
                            v1::PinForEvaluationResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* UnpinEvaluation(Context* context, const v1::UnpinEvaluationRequest* request,
                           v1::UnpinEvaluationResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* ListVersions(Context* context, const v1::ListVersionsRequest* request,
                        v1::ListVersionsResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  grpc::ServerWriteReactor<v1::WatchVersionsResponse>* WatchVersions(
      Context* context, const v1::WatchVersionsRequest* request) override;
  Reactor* EndRun(Context* context, const v1::EndRunRequest* request,
                  v1::EndRunResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* AdvanceOrchestratorEpoch(Context* context,
                                    const v1::AdvanceOrchestratorEpochRequest* request,
                                    v1::AdvanceOrchestratorEpochResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  // What is kept on disk: store_models.cc.
  grpc::ServerReadReactor<v1::ImportModelRequest>* ImportModel(
      Context* context, v1::ImportModelResponse* response) override;
  Reactor* GetStoredModel(Context* context, const v1::GetStoredModelRequest* request,
                          v1::GetStoredModelResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* ListStoredModels(Context* context, const v1::ListStoredModelsRequest* request,
                            v1::ListStoredModelsResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* DeleteStoredModel(Context* context, const v1::DeleteStoredModelRequest* request,
                             v1::DeleteStoredModelResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* CollectGarbage(Context* context, const v1::CollectGarbageRequest* request,
                          v1::CollectGarbageResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  Reactor* ReadBlob(Context* context, const v1::ReadBlobRequest* request,
                    v1::ReadBlobResponse* response) override {
    return ServeBlocking(context, request, response);
  }
  grpc::ServerReadReactor<v1::PutBundleRequest>* PutBundle(
      Context* context, v1::PutBundleResponse* response) override;
  grpc::ServerReadReactor<v1::PutCheckpointRequest>* PutCheckpoint(
      Context* context, v1::PutCheckpointResponse* response) override;
  Reactor* GetCheckpoint(Context* context, const v1::GetCheckpointRequest* request,
                         v1::GetCheckpointResponse* response) override {
    return ServeBlocking(context, request, response);
  }

  // What each call does, without gRPC's part of it. These block; reasons travel as StatusOr's
  // payload.
  StatusOr<v1::RegisterTrainerResponse> Handle(const v1::RegisterTrainerRequest& message);
  StatusOr<v1::PutDoneResponse> Handle(const v1::PutDoneRequest& message);
  StatusOr<v1::CommitVersionResponse> Handle(const v1::CommitVersionRequest& message);
  StatusOr<v1::AcquireLeaseResponse> Handle(const v1::AcquireLeaseRequest& message);
  StatusOr<v1::ReleaseLeaseResponse> Handle(const v1::ReleaseLeaseRequest& message);
  StatusOr<v1::PinForEvaluationResponse> Handle(const v1::PinForEvaluationRequest& message);
  StatusOr<v1::UnpinEvaluationResponse> Handle(const v1::UnpinEvaluationRequest& message);
  StatusOr<v1::ListVersionsResponse> Handle(const v1::ListVersionsRequest& message);
  StatusOr<v1::EndRunResponse> Handle(const v1::EndRunRequest& message);
  StatusOr<v1::AdvanceOrchestratorEpochResponse> Handle(
      const v1::AdvanceOrchestratorEpochRequest& message);
  StatusOr<v1::GetStoredModelResponse> Handle(const v1::GetStoredModelRequest& message);
  StatusOr<v1::ListStoredModelsResponse> Handle(const v1::ListStoredModelsRequest& message);
  StatusOr<v1::DeleteStoredModelResponse> Handle(const v1::DeleteStoredModelRequest& message);
  StatusOr<v1::CollectGarbageResponse> Handle(const v1::CollectGarbageRequest& message);
  StatusOr<v1::ReadBlobResponse> Handle(const v1::ReadBlobRequest& message);
  StatusOr<v1::GetCheckpointResponse> Handle(const v1::GetCheckpointRequest& message);
  // Control strand; they end with RPC reasons.
  rpc::asio::awaitable<StatusOr<v1::BeginVersionResponse>> Begin(v1::BeginVersionRequest request);
  rpc::asio::awaitable<Status> Watch(
      v1::WatchVersionsRequest request,
      std::shared_ptr<rpc::ResponseStream<v1::WatchVersionsResponse>> out);
  rpc::asio::awaitable<StatusOr<v1::ImportModelResponse>> DoImport(
      std::shared_ptr<rpc::RequestStream<v1::ImportModelRequest>> in);
  rpc::asio::awaitable<StatusOr<v1::PutBundleResponse>> DoPutBundle(
      std::shared_ptr<rpc::RequestStream<v1::PutBundleRequest>> in);
  rpc::asio::awaitable<StatusOr<v1::PutCheckpointResponse>> DoPutCheckpoint(
      std::shared_ptr<rpc::RequestStream<v1::PutCheckpointRequest>> in);

 private:
  // A header and then the bytes of a model or checkpoint, into the library. It ends as soon as its
  // sender is not `allowed` any more, also while nothing comes.
  struct Received {
    StoredModel stored;
    bool existed = false;
  };
  template <typename Request, typename Header>
  rpc::asio::awaitable<StatusOr<Received>> Receive(
      std::shared_ptr<rpc::RequestStream<Request>> in,
      std::function<StatusOr<std::unique_ptr<Library::Import>>(const Header&)> begin,
      std::function<Status(const Header&)> allowed, std::shared_ptr<Header> header);
  // Keeps the newest version of a run whose memory goes. AlreadyExists: another call is at it.
  Status KeepNewest(const std::string& run_id);
  // Writes it to disk, and tells the log and the metrics. Codes of Library::Keep, of which
  // AlreadyExists is told to nobody.
  Status Keep(const std::string& run_id, const Leader::DiskSource& source, bool in_reserved_room);
  // A version that should be on disk is not: it is counted, logged and noted for who asks.
  void NotKept(const std::string& run_id, uint64_t version, const Status& why);
  // Runs Handle(request) on the blocking pool and carries its reason over.
  template <typename Request, typename Response>
  Reactor* ServeBlocking(Context* context, const Request* request, Response* response);

  rpc::RpcServer& server_;
  runtime::BlockingPool& blocking_;
  Leader& leader_;
  Library& library_;
  const std::shared_ptr<Watchers> watchers_;
  size_t num_watching_ = 0;  // control strand
  runtime::Gauge watching_;
  runtime::Counter ring_full_;
  runtime::Histogram verify_seconds_;
  runtime::Histogram commit_seconds_;
  runtime::Histogram keep_seconds_;
  runtime::Counter not_kept_;
};

template <typename Request, typename Response>
grpc::ServerUnaryReactor* WeightStoreGrpcService::ServeBlocking(Context* context,
                                                                const Request* request,
                                                                Response* response) {
  return rpc::ServeUnaryThen(
      server_, context, request, response,
      [this](Request message, std::function<void(StatusOr<Response>)> reply) {
        const Status posted = blocking_.Post([this, message = std::move(message), reply] {
          StatusOr<Response> result = Handle(message);
          if (!result.ok()) result = ReasonToRpc(result.status());
          reply(std::move(result));
        });
        if (!posted.ok()) reply(posted);
      });
}

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_SERVICE_H_
