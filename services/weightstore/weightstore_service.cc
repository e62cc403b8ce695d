// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/weightstore_service.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <boost/asio/steady_timer.hpp>

#include "core/runtime/co_status.h"
#include "core/runtime/log.h"
#include "services/weightstore_client/convert.h"
#include "weightstore/client/reason.h"

namespace titan::weightstore {
namespace {

namespace asio = rpc::asio;
using std::chrono::steady_clock;

constexpr size_t kMaxWatching = 1024;
constexpr size_t kVersionsPerMessage = 256;
constexpr int kVersionsPerPage = 4096;
constexpr size_t kMessagesQueued = 4;
constexpr uint32_t kMaxWaitMs = 600'000;
constexpr int kMaxLanes = 8;
// How often a call that waits for the ring looks again.
constexpr std::chrono::milliseconds kRingPeriod{5};

double SecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

v1::VersionInfo ToProto(const VersionInfo& info) {
  v1::VersionInfo message;
  message.set_version(info.version);
  message.set_state(static_cast<v1::VersionState>(info.state));
  if (info.record.has_value()) {
    message.set_weights_digest(ToHex(info.record->digest));
    message.set_plan_digest(info.record->plan_digest);
    message.set_train_step(info.record->train_step);
    message.set_committed_unix_ms(info.record->committed_unix_ms);
  }
  for (const std::string& holder : info.holders) message.add_holders(holder);
  return message;
}

}  // namespace

WeightStoreGrpcService::WeightStoreGrpcService(rpc::RpcServer& server,
                                               runtime::BlockingPool& blocking,
                                               runtime::Metrics& metrics, Leader& leader,
                                               Library& library, std::shared_ptr<Watchers> watchers)
    : server_(server),
      blocking_(blocking),
      leader_(leader),
      library_(library),
      watchers_(std::move(watchers)),
      watching_(
          metrics.AddGauge("titan_weightstore_watchers", "Streams that are told of versions")),
      ring_full_(metrics.AddCounter("titan_weightstore_ring_full_total",
                                    "BeginVersion calls that found every slot in use")),
      verify_seconds_(metrics.AddHistogram("titan_weightstore_verify_seconds",
                                           "Time to hash a written slot and compare digests",
                                           runtime::SecondsBuckets())),
      commit_seconds_(metrics.AddHistogram("titan_weightstore_commit_seconds",
                                           "Time of a commit with its synced record",
                                           runtime::SecondsBuckets())),
      keep_seconds_(metrics.AddHistogram("titan_weightstore_keep_seconds",
                                         "Time to write a version out of its slot to disk",
                                         runtime::SecondsBuckets())),
      not_kept_(metrics.AddCounter("titan_weightstore_not_kept_total",
                                   "Versions that should be on disk and could not be written")) {}

StatusOr<v1::RegisterTrainerResponse> WeightStoreGrpcService::Handle(
    const v1::RegisterTrainerRequest& message) {
  TITAN_ASSIGN_OR_RETURN(const Manifest manifest, FromProto(message.manifest()));
  const auto start = steady_clock::now();
  if (const Status room = library_.Reserve(message.run_id(), manifest); !room.ok()) {
    return WithReason(room, kDiskLimit);
  }
  const StatusOr<Registration> registered =
      leader_.RegisterTrainer(message.request_id(), message.run_id(), manifest, message.max_age(),
                              message.evaluation_slots(), message.host());
  if (!registered.ok()) {
    if (!leader_.GoesOn(message.run_id())) library_.Unreserve(message.run_id());
    return registered.status();
  }
  const Registration registration = *registered;
  TITAN_LOG(kInfo, "trainer_registered", {"run_id", message.run_id()},
            {"epoch", registration.epoch}, {"ring_slots", registration.ring_slots},
            {"slot_bytes", manifest.slot_bytes}, {"seconds", SecondsSince(start)});
  v1::RegisterTrainerResponse answer;
  answer.set_epoch(registration.epoch);
  answer.set_ring_slots(registration.ring_slots);
  return answer;
}

grpc::ServerUnaryReactor* WeightStoreGrpcService::BeginVersion(
    Context* context, const v1::BeginVersionRequest* request, v1::BeginVersionResponse* response) {
  return rpc::ServeUnary(
      server_, context, request, response,
      [this](v1::BeginVersionRequest message) { return Begin(std::move(message)); });
}

asio::awaitable<StatusOr<v1::BeginVersionResponse>> WeightStoreGrpcService::Begin(
    v1::BeginVersionRequest request) {
  const auto deadline =
      steady_clock::now() + std::chrono::milliseconds(std::min(request.wait_ms(), kMaxWaitMs));
  asio::steady_timer timer(server_.control());
  bool blocked = false;
  for (;;) {
    const StatusOr<Leader::BeginTry> begun =
        leader_.TryBeginVersion(request.run_id(), request.epoch(), request.version());
    if (!begun.ok()) co_return ReasonToRpc(begun.status());
    if (begun->result.has_value()) {
      if (!begun->blockers.empty()) {
        TITAN_LOG(kWarning, "readers_fenced", {"run_id", request.run_id()},
                  {"version", request.version()}, {"readers", begun->blockers});
      }
      v1::BeginVersionResponse response;
      response.set_grant(begun->result->grant);
      if (begun->result->recorded_digest.has_value()) {
        response.set_recorded_digest(ToHex(*begun->result->recorded_digest));
      }
      co_return response;
    }
    if (begun->ring_full && !std::exchange(blocked, true)) {
      ring_full_.Add();
      TITAN_LOG(kWarning, "ring_full", {"run_id", request.run_id()}, {"version", request.version()},
                {"blockers", begun->blockers});
    }
    if (steady_clock::now() >= deadline) {
      const std::chrono::milliseconds waited(request.wait_ms());
      co_return ReasonToRpc(begun->Expired(request.version(), waited));
    }
    timer.expires_after(kRingPeriod);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

StatusOr<v1::PutDoneResponse> WeightStoreGrpcService::Handle(const v1::PutDoneRequest& message) {
  TITAN_ASSIGN_OR_RETURN(const Hash128 digest,
                         DigestFromProto("weights_digest", message.weights_digest()));
  const auto start = steady_clock::now();
  const Status done = leader_.PutDone(message.run_id(), message.epoch(), message.version(),
                                      message.grant(), digest);
  if (!done.ok()) {
    if (done.code() == StatusCode::kDataLoss) {
      TITAN_LOG(kError, "verify_failed", {"run_id", message.run_id()},
                {"version", message.version()}, {"status", done});
    }
    return done;
  }
  verify_seconds_.Observe(SecondsSince(start));
  return v1::PutDoneResponse();
}

StatusOr<v1::CommitVersionResponse> WeightStoreGrpcService::Handle(
    const v1::CommitVersionRequest& message) {
  TITAN_ASSIGN_OR_RETURN(const Hash128 digest,
                         DigestFromProto("weights_digest", message.weights_digest()));
  const auto start = steady_clock::now();
  TITAN_ASSIGN_OR_RETURN(
      const int64_t committed_unix_ms,
      leader_.CommitVersion(message.run_id(), message.epoch(), message.version(), digest,
                            message.plan_digest(), message.train_step()));
  commit_seconds_.Observe(SecondsSince(start));
  TITAN_LOG(kInfo, "version_committed", {"run_id", message.run_id()},
            {"version", message.version()}, {"weights_digest", message.weights_digest()});
  v1::CommitVersionResponse answer;
  answer.set_committed_unix_ms(committed_unix_ms);
  return answer;
}

StatusOr<v1::AcquireLeaseResponse> WeightStoreGrpcService::Handle(
    const v1::AcquireLeaseRequest& message) {
  v1::AcquireLeaseResponse answer;
  const auto fill = [&answer](const Lease& lease) {
    answer.set_lease_id(lease.lease_id);
    answer.set_grant(lease.grant);
    answer.set_weights_digest(ToHex(lease.digest));
    *answer.mutable_manifest() = weightstore::ToProto(*lease.manifest);
  };
  if (message.lanes().empty() && message.host().empty()) {
    TITAN_ASSIGN_OR_RETURN(const Lease lease,
                           leader_.AcquireLease(message.holder(), message.run_id(),
                                                message.version(), message.evaluation()));
    fill(lease);
    answer.set_lane(v1::LANE_MAP);
    return answer;
  }
  if (message.lanes_size() > kMaxLanes) {
    return InvalidArgument("lanes: more than " + std::to_string(kMaxLanes));
  }
  Reach reach;
  reach.host = message.host();
  for (const int lane : message.lanes()) {
    TITAN_ASSIGN_OR_RETURN(reach.lanes.emplace_back(), FromProto(static_cast<v1::Lane>(lane)));
  }
  TITAN_ASSIGN_OR_RETURN(
      const RemoteLease remote,
      leader_.AcquireRemoteLease(message.holder(), message.run_id(), message.version(),
                                 message.evaluation(), reach));
  fill(remote.lease);
  answer.set_lane(weightstore::ToProto(remote.lane));
  answer.set_ttl_ms(static_cast<uint64_t>(remote.ttl.count()));
  if (remote.lane == Lane::kMap) return answer;
  answer.set_epoch(remote.epoch);
  answer.set_token(ToHex(remote.token));
  answer.set_data_plane_address(remote.address);
  return answer;
}

StatusOr<v1::ReleaseLeaseResponse> WeightStoreGrpcService::Handle(
    const v1::ReleaseLeaseRequest& message) {
  TITAN_RETURN_IF_ERROR(leader_.ReleaseLease(message.lease_id()));
  return v1::ReleaseLeaseResponse();
}

StatusOr<v1::PinForEvaluationResponse> WeightStoreGrpcService::Handle(
    const v1::PinForEvaluationRequest& message) {
  TITAN_ASSIGN_OR_RETURN(const Hash128 digest,
                         leader_.PinForEvaluation(message.run_id(), message.version()));
  TITAN_LOG(kInfo, "evaluation_pinned", {"run_id", message.run_id()},
            {"version", message.version()});
  v1::PinForEvaluationResponse answer;
  answer.set_weights_digest(ToHex(digest));
  return answer;
}

StatusOr<v1::UnpinEvaluationResponse> WeightStoreGrpcService::Handle(
    const v1::UnpinEvaluationRequest& message) {
  TITAN_RETURN_IF_ERROR(leader_.UnpinEvaluation(message.run_id(), message.version()));
  return v1::UnpinEvaluationResponse();
}

StatusOr<v1::ListVersionsResponse> WeightStoreGrpcService::Handle(
    const v1::ListVersionsRequest& message) {
  TITAN_ASSIGN_OR_RETURN(
      const std::vector<VersionInfo> versions,
      leader_.ListVersions(message.run_id(), message.from_version(), kVersionsPerPage + 1));
  v1::ListVersionsResponse answer;
  size_t num_bytes = 0;
  for (const VersionInfo& info : versions) {
    if (answer.versions_size() == kVersionsPerPage || num_bytes > kPageBytes) {
      answer.set_next_version(info.version);
      break;
    }
    v1::VersionInfo& out = *answer.add_versions();
    out = ToProto(info);
    if (const auto kept = library_.FindVersion(message.run_id(), info.version); kept.ok()) {
      out.set_kept_bytes(kept->num_bytes());
      out.set_stored_id(kept->id);
    } else {
      out.set_not_kept_reason(library_.NotKeptReason(message.run_id(), info.version));
    }
    num_bytes += out.ByteSizeLong();
  }
  return answer;
}

grpc::ServerWriteReactor<v1::WatchVersionsResponse>* WeightStoreGrpcService::WatchVersions(
    Context* context, const v1::WatchVersionsRequest* request) {
  using Stream = rpc::ResponseStream<v1::WatchVersionsResponse>;
  return rpc::ServeStream<v1::WatchVersionsResponse>(
      server_, context, request, kMessagesQueued,
      [this](v1::WatchVersionsRequest message, std::shared_ptr<Stream> out) {
        return Watch(std::move(message), std::move(out));
      });
}

asio::awaitable<Status> WeightStoreGrpcService::Watch(
    v1::WatchVersionsRequest request,
    std::shared_ptr<rpc::ResponseStream<v1::WatchVersionsResponse>> out) {
  if (num_watching_ >= kMaxWatching) {
    co_return ResourceExhausted("there are " + std::to_string(num_watching_) +
                                " watchers already, which is the most");
  }
  struct Counted {
    explicit Counted(WeightStoreGrpcService& service) : service(service) { Add(1); }
    ~Counted() { Add(-1); }
    void Add(int one) {
      service.num_watching_ += static_cast<size_t>(one);
      service.watching_.Set(static_cast<double>(service.num_watching_));
    }
    WeightStoreGrpcService& service;
  } const counted(*this);
  out->OnCancel([watchers = watchers_] { watchers->Wake(); });  // who goes is let go at once
  uint64_t cursor = 0;
  for (;;) {
    const uint64_t seen = watchers_->news();
    const StatusOr<StoreState::Changes> changes =
        leader_.ChangesSince(request.run_id(), cursor, request.from_version(), kVersionsPerMessage);
    if (!changes.ok()) co_return ReasonToRpc(changes.status());
    cursor = changes->cursor;
    if (!changes->versions.empty() || changes->ended) {
      v1::WatchVersionsResponse response;
      for (const VersionInfo& info : changes->versions) *response.add_versions() = ToProto(info);
      response.set_run_ended(changes->ended);
      TITAN_CO_RETURN_IF_ERROR(co_await out->Write(std::move(response)));
    }
    if (changes->ended) co_return OkStatus();
    if (out->cancelled()) co_return Cancelled("the watcher has gone");
    if (changes->versions.size() < kVersionsPerMessage) co_await watchers_->Wait(seen);
  }
}

Status WeightStoreGrpcService::KeepNewest(const std::string& run_id) {
  TITAN_ASSIGN_OR_RETURN(const std::optional<Leader::DiskSource> newest,
                         leader_.HoldNewestForDisk(run_id));
  if (!newest.has_value()) return OkStatus();
  const Status kept = Keep(run_id, *newest, /*in_reserved_room=*/true);
  // Otherwise the run ends all the same.
  return kept.code() == StatusCode::kAlreadyExists ? kept : OkStatus();
}

Status WeightStoreGrpcService::Keep(const std::string& run_id, const Leader::DiskSource& source,
                                    bool in_reserved_room) {
  const auto start = steady_clock::now();
  const Status kept = library_.Keep(run_id, source.version, source.digest, source.manifest,
                                    source.view, in_reserved_room);
  if (kept.ok()) {
    keep_seconds_.Observe(SecondsSince(start));
    TITAN_LOG(kInfo, "version_kept", {"run_id", run_id}, {"version", source.version},
              {"seconds", SecondsSince(start)});
  } else if (kept.code() != StatusCode::kAlreadyExists) {
    NotKept(run_id, source.version, kept);
  }
  return kept;
}

void WeightStoreGrpcService::NotKept(const std::string& run_id, uint64_t version,
                                     const Status& why) {
  not_kept_.Add();
  TITAN_LOG(kError, "version_not_kept", {"run_id", run_id}, {"version", version}, {"status", why});
  library_.NoteNotKept(run_id, version, MessageOf(why));
}

StatusOr<v1::EndRunResponse> WeightStoreGrpcService::Handle(const v1::EndRunRequest& message) {
  if (const Status kept = KeepNewest(message.run_id()); !kept.ok()) {
    return kept.code() == StatusCode::kAlreadyExists ? Unavailable(MessageOf(kept) + "; ask again")
                                                     : kept;
  }
  TITAN_RETURN_IF_ERROR(leader_.EndRun(message.run_id(), message.epoch()));
  library_.Unreserve(message.run_id());
  if (const auto dropped = library_.DropCheckpoints(message.run_id()); !dropped.ok()) {
    TITAN_LOG(kWarning, "checkpoints_not_dropped", {"run_id", message.run_id()},
              {"status", dropped.status()});
  }
  TITAN_LOG(kInfo, "run_ended", {"run_id", message.run_id()});
  return v1::EndRunResponse();
}

StatusOr<v1::AdvanceOrchestratorEpochResponse> WeightStoreGrpcService::Handle(
    const v1::AdvanceOrchestratorEpochRequest& message) {
  TITAN_ASSIGN_OR_RETURN(const uint64_t epoch,
                         leader_.AdvanceOrchestratorEpoch(message.request_id()));
  TITAN_LOG(kInfo, "orchestrator_epoch_issued", {"epoch", epoch});
  v1::AdvanceOrchestratorEpochResponse answer;
  answer.set_epoch(epoch);
  return answer;
}

}  // namespace titan::weightstore
