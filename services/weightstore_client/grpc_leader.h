// SPDX-License-Identifier: Apache-2.0
//
// The weight store over gRPC, its leader and what it keeps on disk, for the services of trainers,
// generators and the orchestrator.
//
//   auto leader = GrpcLeader::Create(context.client, config.weightstore_address());
//   on the blocking pool or an engine thread:  Publisher::Register(**leader, ...),
//                                              Subscriber(**leader, ...).Acquire(...)
#ifndef TITAN_SERVICES_WEIGHTSTORE_CLIENT_GRPC_LEADER_H_
#define TITAN_SERVICES_WEIGHTSTORE_CLIENT_GRPC_LEADER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "services/rpc/rpc_client.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"
#include "weightstore/client/checkpoint_port.h"
#include "weightstore/client/leader_port.h"
#include "weightstore/client/stored_model.h"

namespace titan::weightstore {

struct GrpcLeaderOptions {
  std::chrono::milliseconds deadline{10'000};  // of calls that touch records only
  // Of ReleaseLease, which nobody depends on: who lost its source must say so within 2 s.
  std::chrono::milliseconds release_deadline{500};
  std::chrono::milliseconds long_deadline{120'000};  // of calls that take, hash or copy slots
};

// Thread-safe. Calls block and are completed by the control strand of `client`: never call from
// there. After RpcClient::CancelAll they return Cancelled.
class GrpcLeader final : public LeaderPort, public ModelPort, public CheckpointPort {
 public:
  // client must outlive the leader. InvalidArgument: not an address that may be dialled.
  static StatusOr<std::unique_ptr<GrpcLeader>> Create(rpc::RpcClient& client,
                                                      const std::string& address,
                                                      GrpcLeaderOptions options = {});

  StatusOr<Registration> RegisterTrainer(const std::string& request_id, const std::string& run_id,
                                         const Manifest& manifest, uint32_t max_age,
                                         uint32_t evaluation_slots,
                                         const std::string& host) override;
  StatusOr<BeginResult> BeginVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                     std::chrono::milliseconds wait) override;
  Status PutDone(const std::string& run_id, uint64_t epoch, uint64_t version, uint64_t grant,
                 const Hash128& digest) override;
  StatusOr<int64_t> CommitVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                  const Hash128& digest, const std::string& plan_digest,
                                  uint64_t train_step) override;
  StatusOr<Lease> AcquireLease(const std::string& holder, const std::string& run_id,
                               uint64_t version, bool evaluation) override;
  StatusOr<RemoteLease> AcquireRemoteLease(const std::string& holder, const std::string& run_id,
                                           uint64_t version, bool evaluation,
                                           const Reach& reach) override;
  Status ReleaseLease(uint64_t lease_id) override;

  StatusOr<StoredModel> FindModel(const std::string& id_or_name) override;
  StatusOr<StoredModel> FindVersion(const std::string& run_id, uint64_t version) override;
  StatusOr<std::string> ReadBlob(const Hash128& digest, std::optional<uint64_t> num_bytes) override;
  StatusOr<Hash128> PutBundle(const std::string& bundle) override;
  // Without the words.
  StatusOr<DiskUse> Disk();
  Status PutCheckpoint(const Checkpoint& checkpoint, std::function<StatusOr<std::string>()> next,
                       const std::function<bool()>& given_up) override;
  StatusOr<StoredModel> FindCheckpoint(const std::string& run_id) override;
  // Sends a model: `next` gives its bytes (bundle, then tensors) in parts of at most 1 MiB, nothing
  // at the end; its failure ends the import, of which nothing stays, and is returned. `next` runs
  // on the control strand. Codes of the store: InvalidArgument, AlreadyExists (the name belongs to
  // another model), ResourceExhausted with the numbers of the disk, DataLoss.
  StatusOr<v1::ImportModelResponse> Import(const v1::ImportModelHeader& header,
                                           std::function<StatusOr<std::string>()> next);

 private:
  using Async = v1::WeightStoreService::StubInterface::async_interface;

  GrpcLeader(rpc::RpcClient& client, std::unique_ptr<v1::WeightStoreService::StubInterface> stub,
             GrpcLeaderOptions options);

  StatusOr<v1::AcquireLeaseResponse> Acquire(const std::string& holder, const std::string& run_id,
                                             uint64_t version, bool evaluation, const Reach& reach);
  StatusOr<StoredModel> Get(v1::GetStoredModelRequest request);
  template <typename Request, typename Response>
  StatusOr<Response> CallStream(rpc::WriteStreamMethod<Async, Request, Response> method,
                                std::function<std::optional<Request>()> next,
                                std::chrono::milliseconds deadline,
                                const std::function<bool()>& given_up);
  // A header, then what `next` gives.
  template <typename Request, typename Response, typename Header>
  StatusOr<Response> SendParts(rpc::WriteStreamMethod<Async, Request, Response> method,
                               const Header& header, std::function<StatusOr<std::string>()> next,
                               const std::function<bool()>& given_up);
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
