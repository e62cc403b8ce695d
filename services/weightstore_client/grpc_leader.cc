// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore_client/grpc_leader.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "services/rpc/channel.h"
#include "services/weightstore_client/convert.h"

namespace titan::weightstore {
namespace {

// How much longer than its deadline a call may take to come back before it is given up.
constexpr std::chrono::milliseconds kGrace{5'000};
// Of a stream that carries a model.
constexpr std::chrono::milliseconds kStreamDeadline{3'600'000};
constexpr std::chrono::milliseconds kStreamPoll{20};
// A stream that was cancelled while its peer takes nothing ends when its last write does.
constexpr std::chrono::milliseconds kCancelGrace{200};
constexpr size_t kChunkBytes = 1u << 20;
constexpr uint64_t kMaxTtlMs = 30ull * 24 * 3'600'000;  // added to a clock
constexpr uint64_t kReadBytes = 2u << 20;
constexpr uint64_t kMaxBlobBytes = uint64_t{1} << 40;  // of a blob whose size is not known
constexpr auto kNever = [] { return false; };

}  // namespace

GrpcLeader::GrpcLeader(rpc::RpcClient& client,
                       std::unique_ptr<v1::WeightStoreService::StubInterface> stub,
                       GrpcLeaderOptions options)
    : client_(client), stub_(std::move(stub)), options_(options) {}

StatusOr<std::unique_ptr<GrpcLeader>> GrpcLeader::Create(rpc::RpcClient& client,
                                                         const std::string& address,
                                                         GrpcLeaderOptions options) {
  TITAN_ASSIGN_OR_RETURN(const auto channel, rpc::MakeChannel(address));
  return std::unique_ptr<GrpcLeader>(
      new GrpcLeader(client, v1::WeightStoreService::NewStub(channel), options));
}

template <typename Request, typename Response>
StatusOr<Response> GrpcLeader::Call(rpc::UnaryMethod<Async, Request, Response> method,
                                    Request request, std::chrono::milliseconds deadline) {
  auto promise = std::make_shared<std::promise<StatusOr<Response>>>();
  std::future<StatusOr<Response>> future = promise->get_future();
  rpc::CallUnaryThen<v1::WeightStoreService::StubInterface, Async, Request, Response>(
      client_, *stub_, method, std::move(request), deadline,
      [promise, stub = stub_](StatusOr<Response> result) {
        promise->set_value(std::move(result));
      });
  // The control strand may have ended without completing the call.
  if (future.wait_for(deadline + kGrace) != std::future_status::ready) {
    return DeadlineExceeded("the weight store's answer was not delivered: is the process ending?");
  }
  StatusOr<Response> result = future.get();
  if (!result.ok()) return ReasonFromRpc(result.status());
  return result;
}

StatusOr<Registration> GrpcLeader::RegisterTrainer(const std::string& request_id,
                                                   const std::string& run_id,
                                                   const Manifest& manifest, uint32_t max_age,
                                                   uint32_t evaluation_slots,
                                                   const std::string& host) {
  v1::RegisterTrainerRequest request;
  request.set_request_id(request_id);
  request.set_run_id(run_id);
  *request.mutable_manifest() = ToProto(manifest);
  request.set_max_age(max_age);
  request.set_evaluation_slots(evaluation_slots);
  request.set_host(host);
  TITAN_ASSIGN_OR_RETURN(const v1::RegisterTrainerResponse response,
                         Call(&Async::RegisterTrainer, std::move(request), options_.long_deadline));
  return Registration{response.epoch(), response.ring_slots()};
}

StatusOr<BeginResult> GrpcLeader::BeginVersion(const std::string& run_id, uint64_t epoch,
                                               uint64_t version, std::chrono::milliseconds wait) {
  v1::BeginVersionRequest request;
  request.set_run_id(run_id);
  request.set_epoch(epoch);
  request.set_version(version);
  request.set_wait_ms(static_cast<uint32_t>(std::max<int64_t>(wait.count(), 0)));
  TITAN_ASSIGN_OR_RETURN(const v1::BeginVersionResponse response,
                         Call(&Async::BeginVersion, std::move(request), options_.deadline + wait));
  BeginResult result;
  result.grant = response.grant();
  if (!response.recorded_digest().empty()) {
    TITAN_ASSIGN_OR_RETURN(result.recorded_digest,
                           DigestFromProto("recorded_digest", response.recorded_digest()));
  }
  return result;
}

Status GrpcLeader::PutDone(const std::string& run_id, uint64_t epoch, uint64_t version,
                           uint64_t grant, const Hash128& digest) {
  v1::PutDoneRequest request;
  request.set_run_id(run_id);
  request.set_epoch(epoch);
  request.set_version(version);
  request.set_grant(grant);
  request.set_weights_digest(ToHex(digest));
  return Call(&Async::PutDone, std::move(request), options_.long_deadline).status();
}

StatusOr<int64_t> GrpcLeader::CommitVersion(const std::string& run_id, uint64_t epoch,
                                            uint64_t version, const Hash128& digest,
                                            const std::string& plan_digest, uint64_t train_step) {
  v1::CommitVersionRequest request;
  request.set_run_id(run_id);
  request.set_epoch(epoch);
  request.set_version(version);
  request.set_weights_digest(ToHex(digest));
  request.set_plan_digest(plan_digest);
  request.set_train_step(train_step);
  TITAN_ASSIGN_OR_RETURN(const v1::CommitVersionResponse response,
                         Call(&Async::CommitVersion, std::move(request), options_.deadline));
  return response.committed_unix_ms();
}

StatusOr<v1::AcquireLeaseResponse> GrpcLeader::Acquire(const std::string& holder,
                                                       const std::string& run_id, uint64_t version,
                                                       bool evaluation, const Reach& reach) {
  v1::AcquireLeaseRequest request;
  request.set_holder(holder);
  request.set_run_id(run_id);
  request.set_version(version);
  request.set_evaluation(evaluation);
  for (const Lane lane : reach.lanes) request.add_lanes(ToProto(lane));
  request.set_host(reach.host);
  // For evaluation it may be read from disk first.
  const auto deadline = evaluation ? options_.long_deadline : options_.deadline;
  return Call(&Async::AcquireLease, std::move(request), deadline);
}

namespace {

StatusOr<Lease> LeaseOf(const v1::AcquireLeaseResponse& response, const std::string& run_id,
                        uint64_t version) {
  Lease lease;
  lease.lease_id = response.lease_id();
  lease.grant = response.grant();
  lease.run_id = run_id;
  lease.version = version;
  TITAN_ASSIGN_OR_RETURN(lease.digest,
                         DigestFromProto("weights_digest", response.weights_digest()));
  TITAN_ASSIGN_OR_RETURN(Manifest manifest, FromProto(response.manifest()));
  lease.manifest = std::make_shared<const Manifest>(std::move(manifest));
  return lease;
}

}  // namespace

StatusOr<Lease> GrpcLeader::AcquireLease(const std::string& holder, const std::string& run_id,
                                         uint64_t version, bool evaluation) {
  TITAN_ASSIGN_OR_RETURN(const auto response, Acquire(holder, run_id, version, evaluation, {}));
  return LeaseOf(response, run_id, version);
}

StatusOr<RemoteLease> GrpcLeader::AcquireRemoteLease(const std::string& holder,
                                                     const std::string& run_id, uint64_t version,
                                                     bool evaluation, const Reach& reach) {
  TITAN_ASSIGN_OR_RETURN(const auto response, Acquire(holder, run_id, version, evaluation, reach));
  RemoteLease remote;
  TITAN_ASSIGN_OR_RETURN(remote.lease, LeaseOf(response, run_id, version));
  remote.ttl = std::chrono::milliseconds(std::min(response.ttl_ms(), kMaxTtlMs));
  TITAN_ASSIGN_OR_RETURN(remote.lane, FromProto(response.lane()));
  if (remote.lane == Lane::kMap) return remote;
  remote.epoch = response.epoch();
  TITAN_ASSIGN_OR_RETURN(remote.token, DigestFromProto("token", response.token()));
  remote.address = response.data_plane_address();
  return remote;
}

StatusOr<StoredModel> GrpcLeader::Get(v1::GetStoredModelRequest request) {
  TITAN_ASSIGN_OR_RETURN(const v1::GetStoredModelResponse response,
                         Call(&Async::GetStoredModel, std::move(request), options_.deadline));
  return FromProto(response.model());
}

StatusOr<StoredModel> GrpcLeader::FindModel(const std::string& id_or_name) {
  v1::GetStoredModelRequest request;
  request.set_id(id_or_name);
  return Get(std::move(request));
}

StatusOr<StoredModel> GrpcLeader::FindVersion(const std::string& run_id, uint64_t version) {
  v1::GetStoredModelRequest request;
  request.set_run_id(run_id);
  request.set_version(version);
  return Get(std::move(request));
}

StatusOr<DiskUse> GrpcLeader::Disk() {
  TITAN_ASSIGN_OR_RETURN(
      const v1::ListStoredModelsResponse answer,
      Call(&Async::ListStoredModels, v1::ListStoredModelsRequest(), options_.deadline));
  DiskUse use;
  use.used_bytes = answer.disk_used_bytes();
  use.reserved_bytes = answer.disk_reserved_bytes();
  use.available_bytes = answer.disk_available_bytes();
  use.keeps_nothing = answer.keeps_nothing();
  return use;
}

StatusOr<std::string> GrpcLeader::ReadBlob(const Hash128& digest,
                                           std::optional<uint64_t> num_bytes) {
  const uint64_t most = num_bytes.value_or(kMaxBlobBytes);
  std::string bytes;
  while (bytes.size() < most) {
    v1::ReadBlobRequest request;
    request.set_digest(ToHex(digest));
    request.set_offset(bytes.size());
    request.set_max_bytes(static_cast<uint32_t>(std::min(kReadBytes, most - bytes.size())));
    TITAN_ASSIGN_OR_RETURN(const v1::ReadBlobResponse response,
                           Call(&Async::ReadBlob, std::move(request), options_.deadline));
    if (response.chunk().empty()) break;
    bytes += response.chunk();
  }
  TITAN_RETURN_IF_ERROR(CheckBlob(digest, num_bytes, bytes));
  return bytes;
}

template <typename Request, typename Response>
StatusOr<Response> GrpcLeader::CallStream(rpc::WriteStreamMethod<Async, Request, Response> method,
                                          std::function<std::optional<Request>()> next,
                                          std::chrono::milliseconds deadline,
                                          const std::function<bool()>& given_up) {
  auto promise = std::make_shared<std::promise<StatusOr<Response>>>();
  std::future<StatusOr<Response>> future = promise->get_future();
  rpc::StreamHandle handle =
      rpc::CallClientStream<v1::WeightStoreService::StubInterface, Async, Request, Response>(
          client_, *stub_, method, std::move(next), deadline,
          [promise, stub = stub_](StatusOr<Response> result) {
            promise->set_value(std::move(result));
          });
  // The control strand may have ended, and then completes nothing.
  if (!handle.open()) return Cancelled("shutting down");
  auto give_up = std::chrono::steady_clock::now() + deadline + kGrace;
  bool cancelled = false;
  while (future.wait_for(kStreamPoll) != std::future_status::ready) {
    if (!cancelled && given_up()) {
      cancelled = true;
      handle.Cancel();
      give_up = std::min(give_up, std::chrono::steady_clock::now() + kCancelGrace);
    }
    if (std::chrono::steady_clock::now() > give_up) {
      if (cancelled) return Cancelled("given up, with the weight store taking nothing");
      return DeadlineExceeded(
          "the weight store's answer was not delivered: is the process ending?");
    }
  }
  StatusOr<Response> result = future.get();
  if (!result.ok()) return ReasonFromRpc(result.status());
  return result;
}

StatusOr<Hash128> GrpcLeader::PutBundle(const std::string& bundle) {
  const auto rest = std::make_shared<std::string>(bundle);
  auto at = std::make_shared<size_t>(0);
  const auto next = [at, rest]() -> std::optional<v1::PutBundleRequest> {
    if (*at >= rest->size()) return std::nullopt;
    v1::PutBundleRequest request;
    request.set_chunk(rest->substr(*at, kChunkBytes));
    *at += request.chunk().size();
    return request;
  };
  const auto response = CallStream<v1::PutBundleRequest, v1::PutBundleResponse>(
      &Async::PutBundle, next, options_.long_deadline, kNever);
  if (!response.ok()) return response.status();
  return DigestFromProto("digest", response->digest());
}

template <typename Request, typename Response, typename Header>
StatusOr<Response> GrpcLeader::SendParts(rpc::WriteStreamMethod<Async, Request, Response> method,
                                         const Header& header,
                                         std::function<StatusOr<std::string>()> next,
                                         const std::function<bool()>& given_up) {
  struct State {
    bool began = false;
    std::atomic<bool> failed = false;
    Status failure;  // written before `failed`
  };
  auto state = std::make_shared<State>();
  const auto next_message = [state, header, next = std::move(next)]() -> std::optional<Request> {
    Request message;
    if (!std::exchange(state->began, true)) {
      *message.mutable_header() = header;
      return message;
    }
    StatusOr<std::string> part = next();
    if (!part.ok()) {
      state->failure = part.status();
      state->failed = true;
      return std::nullopt;  // the store misses bytes and drops what came
    }
    if (part->empty()) return std::nullopt;
    message.set_chunk(*std::move(part));
    return message;
  };
  auto response = CallStream<Request, Response>(method, next_message, kStreamDeadline,
                                                [&] { return state->failed.load() || given_up(); });
  if (state->failed) return state->failure;
  return response;
}

StatusOr<v1::ImportModelResponse> GrpcLeader::Import(const v1::ImportModelHeader& header,
                                                     std::function<StatusOr<std::string>()> next) {
  return SendParts<v1::ImportModelRequest, v1::ImportModelResponse>(&Async::ImportModel, header,
                                                                    std::move(next), kNever);
}

Status GrpcLeader::PutCheckpoint(const Checkpoint& checkpoint,
                                 std::function<StatusOr<std::string>()> next,
                                 const std::function<bool()>& given_up) {
  v1::PutCheckpointHeader header;
  header.set_request_id(checkpoint.request_id);
  header.set_run_id(checkpoint.run_id);
  header.set_epoch(checkpoint.epoch);
  header.set_version(checkpoint.version);
  *header.mutable_manifest() = ToProto(checkpoint.manifest);
  header.set_facts_bytes(checkpoint.facts.size());
  header.set_digest(ToHex(checkpoint.digest));
  header.set_needed_version(checkpoint.needed_version);
  auto facts = checkpoint.facts;  // come before the tensors
  auto all = [facts = std::move(facts), next = std::move(next)]() mutable {
    return facts.empty() ? next() : StatusOr<std::string>(std::exchange(facts, {}));
  };
  return SendParts<v1::PutCheckpointRequest, v1::PutCheckpointResponse>(
             &Async::PutCheckpoint, header, std::move(all), given_up)
      .status();
}

StatusOr<StoredModel> GrpcLeader::FindCheckpoint(const std::string& run_id) {
  v1::GetCheckpointRequest request;
  request.set_run_id(run_id);
  TITAN_ASSIGN_OR_RETURN(const v1::GetCheckpointResponse response,
                         Call(&Async::GetCheckpoint, std::move(request), options_.deadline));
  return FromProto(response.checkpoint());
}

Status GrpcLeader::ReleaseLease(uint64_t lease_id) {
  v1::ReleaseLeaseRequest request;
  request.set_lease_id(lease_id);
  return Call(&Async::ReleaseLease, std::move(request), options_.release_deadline).status();
}

}  // namespace titan::weightstore
