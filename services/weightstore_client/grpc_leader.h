// SPDX-License-Identifier: Apache-2.0
//
// The weight store's leader over gRPC, for the services of trainers and generators.
//
//   auto leader = GrpcLeader::Create(context.client, config.weightstore_address());
//   on the blocking pool or an engine thread:  Publisher::Register(**leader, ...),
//                                              Subscriber(**leader, ...).Acquire(...)
#ifndef TITAN_SERVICES_WEIGHTSTORE_CLIENT_GRPC_LEADER_H_
#define TITAN_SERVICES_WEIGHTSTORE_CLIENT_GRPC_LEADER_H_

#include <chrono>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "services/rpc/rpc_client.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"
#include "weightstore/client/leader_port.h"

namespace titan::weightstore {

struct GrpcLeaderOptions {
  std::chrono::milliseconds deadline{10'000};        // of calls that touch records only
  std::chrono::milliseconds long_deadline{120'000};  // of calls that take, hash or copy slots
};

// Thread-safe. Calls block and are completed by the control strand of `client`: never call from
// there. After RpcClient::CancelAll they return Cancelled.
class GrpcLeader final : public LeaderPort {
 public:
  // client must outlive the leader. InvalidArgument: not an address that may be dialled.
  static StatusOr<std::unique_ptr<GrpcLeader>> Create(rpc::RpcClient& client,
                                                      const std::string& address,
                                                      GrpcLeaderOptions options = {});

  StatusOr<Registration> RegisterTrainer(const std::string& request_id, const std::string& run_id,
                                         const Manifest& manifest, uint32_t max_age) override;
  StatusOr<BeginResult> BeginVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                     std::chrono::milliseconds wait) override;
  Status PutDone(const std::string& run_id, uint64_t epoch, uint64_t version, uint64_t grant,
                 const Hash128& digest) override;
  StatusOr<int64_t> CommitVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                  const Hash128& digest, const std::string& plan_digest,
                                  uint64_t train_step) override;
  StatusOr<Lease> AcquireLease(const std::string& holder, const std::string& run_id,
                               uint64_t version, bool evaluation) override;
  Status ReleaseLease(uint64_t lease_id) override;

 private:
  using Async = v1::WeightStoreService::StubInterface::async_interface;

  GrpcLeader(rpc::RpcClient& client, std::unique_ptr<v1::WeightStoreService::StubInterface> stub,
             GrpcLeaderOptions options);

  template <typename Request, typename Response>
  StatusOr<Response> Call(rpc::UnaryMethod<Async, Request, Response> method, Request request,
                          std::chrono::milliseconds deadline);

  rpc::RpcClient& client_;
  // Shared with calls whose completion nobody waits for any more.
  const std::shared_ptr<v1::WeightStoreService::StubInterface> stub_;
  const GrpcLeaderOptions options_;
};

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_CLIENT_GRPC_LEADER_H_
