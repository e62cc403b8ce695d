// SPDX-License-Identifier: Apache-2.0
//
// A weight store that passes everything on to the real one; what it says about leases may be
// changed on the way. Test code.
#ifndef TITAN_TESTS_SUPPORT_STORE_PROXY_H_
#define TITAN_TESTS_SUPPORT_STORE_PROXY_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "titan/weightstore/v1/weightstore.grpc.pb.h"

namespace titan::weightstore::testing {

class StoreProxy final : public v1::WeightStoreService::Service {
 public:
  using Stub = v1::WeightStoreService::Stub;
  // Of each lease that the real store gave; what it returns is the answer. On a thread of
  // the server.
  using OnLease = std::function<grpc::Status(v1::AcquireLeaseResponse*)>;

  StoreProxy(Stub& store, OnLease on_lease) : store_(store), on_lease_(std::move(on_lease)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~StoreProxy() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Calls for a lease so far, those that are under way too.
  int num_asked() const { return num_asked_; }

  grpc::Status AcquireLease(grpc::ServerContext*, const v1::AcquireLeaseRequest* request,
                            v1::AcquireLeaseResponse* response) override {
    ++num_asked_;
    const grpc::Status status = Pass(&Stub::AcquireLease, *request, response);
    return status.ok() ? on_lease_(response) : status;
  }
  grpc::Status ReleaseLease(grpc::ServerContext*, const v1::ReleaseLeaseRequest* request,
                            v1::ReleaseLeaseResponse* response) override {
    return Pass(&Stub::ReleaseLease, *request, response);
  }
  grpc::Status RegisterTrainer(grpc::ServerContext*, const v1::RegisterTrainerRequest* request,
                               v1::RegisterTrainerResponse* response) override {
    return Pass(&Stub::RegisterTrainer, *request, response);
  }
  grpc::Status BeginVersion(grpc::ServerContext*, const v1::BeginVersionRequest* request,
                            v1::BeginVersionResponse* response) override {
    return Pass(&Stub::BeginVersion, *request, response);
  }
  grpc::Status PutDone(grpc::ServerContext*, const v1::PutDoneRequest* request,
                       v1::PutDoneResponse* response) override {
    return Pass(&Stub::PutDone, *request, response);
  }
  grpc::Status CommitVersion(grpc::ServerContext*, const v1::CommitVersionRequest* request,
                             v1::CommitVersionResponse* response) override {
    return Pass(&Stub::CommitVersion, *request, response);
  }
  grpc::Status GetCheckpoint(grpc::ServerContext*, const v1::GetCheckpointRequest* request,
                             v1::GetCheckpointResponse* response) override {
    return Pass(&Stub::GetCheckpoint, *request, response);
  }
  grpc::Status ReadBlob(grpc::ServerContext*, const v1::ReadBlobRequest* request,
                        v1::ReadBlobResponse* response) override {
    return Pass(&Stub::ReadBlob, *request, response);
  }
  grpc::Status PutBundle(grpc::ServerContext*, grpc::ServerReader<v1::PutBundleRequest>* parts,
                         v1::PutBundleResponse* response) override {
    return PassAll(&Stub::PutBundle, parts, response);
  }
  grpc::Status PutCheckpoint(grpc::ServerContext*,
                             grpc::ServerReader<v1::PutCheckpointRequest>* parts,
                             v1::PutCheckpointResponse* response) override {
    return PassAll(&Stub::PutCheckpoint, parts, response);
  }

 private:
  template <typename Method, typename Request, typename Response>
  grpc::Status Pass(Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    return (store_.*method)(&context, request, response);
  }
  template <typename Method, typename Request, typename Response>
  grpc::Status PassAll(Method method, grpc::ServerReader<Request>* parts, Response* response) {
    grpc::ClientContext context;
    const auto stream = (store_.*method)(&context, response);
    for (Request part; parts->Read(&part) && stream->Write(part);) {
    }
    stream->WritesDone();
    return stream->Finish();
  }

  Stub& store_;
  const OnLease on_lease_;
  std::atomic<int> num_asked_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_STORE_PROXY_H_
