// SPDX-License-Identifier: Apache-2.0
// The RPCs of what is kept on disk.
#include <charconv>
#include <chrono>
#include <compare>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/runtime/co_status.h"
#include "core/runtime/log.h"
#include "services/weightstore/weightstore_service.h"
#include "services/weightstore_client/convert.h"

namespace titan::weightstore {
namespace {

namespace asio = rpc::asio;

constexpr size_t kMaxChunkBytes = 1u << 20;
constexpr size_t kMaxReadBytes = 2u << 20;
constexpr size_t kMaxBundleBytes = size_t{256} << 20;
// How often it is asked whether who sends a checkpoint is still the trainer.
constexpr std::chrono::milliseconds kGuardPeriod{1'000};
// How often who waits for another version of its run to be written looks again.
constexpr std::chrono::milliseconds kKeepPeriod{50};

// Where an entry stands in the list of what is stored, whatever comes and goes around it.
struct Place {
  enum Kind : int64_t { kModel, kVersion, kCheckpoint };
  int64_t kind = kModel;
  int64_t stored_unix_ms = 0;  // of a model
  std::string name;            // id or run, of a version with the end that its key has
  uint64_t version = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

std::string TokenOf(const Place& place) {
  return std::to_string(place.kind) + "/" + std::to_string(place.stored_unix_ms) + "/" +
         std::to_string(place.version) + "/" + place.name;
}

StatusOr<Place> PlaceFromToken(const std::string& token) {
  Place place;
  const char* at = token.data();
  const char* const end = at + token.size();
  const auto take = [&](auto* number) {
    const auto [stop, error] = std::from_chars(at, end, *number);
    if (error != std::errc() || stop == end || *stop != '/') return false;
    at = stop + 1;
    return true;
  };
  if (token.size() > 512 || !take(&place.kind) || !take(&place.stored_unix_ms) ||
      !take(&place.version)) {
    return InvalidArgument("page_token: is not one of an answer");
  }
  place.name.assign(at, end);
  return place;
}

// Of a stream whose sender may lose the right to send, and be stopped: control strand only.
struct Guard {
  explicit Guard(asio::any_io_executor control) : timer(std::move(control)) {}
  void End() {
    ended = true;
    timer.cancel();
  }
  asio::steady_timer timer;
  bool ended = false;
  Status status;  // once it has lost it
};

// Looks at the right every now and then; wake: gets the stream out of its wait for the sender.
asio::awaitable<void> Look(std::shared_ptr<Guard> guard, std::function<Status()> check,
                           std::function<void()> wake) {
  while (!guard->ended && guard->status.ok()) {
    guard->timer.expires_after(kGuardPeriod);
    boost::system::error_code woken;
    co_await guard->timer.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    if (!guard->ended) guard->status = check();
  }
  if (!guard->ended) wake();
}

Status TooLongChunk() { return InvalidArgument("chunk: has more than 1 MiB"); }

}  // namespace

template <typename Request, typename Header>
asio::awaitable<StatusOr<WeightStoreGrpcService::Received>> WeightStoreGrpcService::Receive(
    std::shared_ptr<rpc::RequestStream<Request>> in,
    std::function<StatusOr<std::unique_ptr<Library::Import>>(const Header&)> begin,
    std::function<Status(const Header&)> allowed, std::shared_ptr<Header> header) {
  StatusOr<std::optional<Request>> first = co_await in->Next();
  if (!first.ok()) co_return first.status();
  if (!first->has_value() || !(*first)->has_header()) {
    co_return InvalidArgument("header: must be the first message");
  }
  *header = (*first)->header();
  if (header->request_id().empty()) co_return InvalidArgument("header.request_id: is required");
  using Import = std::unique_ptr<Library::Import>;
  const std::function<StatusOr<Import>()> begin_it = [begin, header] { return begin(*header); };
  StatusOr<Import> begun = co_await blocking_.Run(begin_it);
  if (!begun.ok()) co_return begun.status();
  const auto import = std::make_shared<Import>(*std::move(begun));
  const auto guard = std::make_shared<Guard>(server_.control());
  const std::function<Status()> check = [allowed, header] { return allowed(*header); };
  const std::function<void()> wake = [in] { in->Arrive(/*ok=*/false, /*cancelled=*/true); };
  asio::co_spawn(server_.control(), Look(guard, check, wake), asio::detached);
  Status status;
  while (status.ok()) {
    if (!guard->status.ok()) break;
    StatusOr<std::optional<Request>> next = co_await in->Next();
    if (!next.ok()) status = next.status();
    if (!next.ok() || !next->has_value()) break;
    if ((*next)->chunk().size() > kMaxChunkBytes) {
      status = TooLongChunk();
      break;
    }
    const auto chunk = std::make_shared<const std::string>(std::move(*(*next)->mutable_chunk()));
    const std::function<Status()> append = [import, chunk] { return (*import)->Append(*chunk); };
    status = co_await blocking_.Run(append);
  }
  if (!guard->status.ok()) status = guard->status;
  guard->End();
  const std::function<StatusOr<Received>()> finish = [import, status, allowed,
                                                      header]() -> StatusOr<Received> {
    const Import ends_here = std::move(*import);  // files are removed on this thread
    TITAN_RETURN_IF_ERROR(status);
    TITAN_RETURN_IF_ERROR(allowed(*header));
    Received received;
    TITAN_ASSIGN_OR_RETURN(received.stored, ends_here->Finish(&received.existed));
    return received;
  };
  co_return co_await blocking_.Run(finish);
}

asio::awaitable<StatusOr<v1::ImportModelResponse>> WeightStoreGrpcService::DoImport(
    std::shared_ptr<rpc::RequestStream<v1::ImportModelRequest>> in) {
  using Header = v1::ImportModelHeader;
  using Import = std::unique_ptr<Library::Import>;
  const std::function<StatusOr<Import>(const Header&)> begin =
      [this](const Header& header) -> StatusOr<Import> {
    TITAN_ASSIGN_OR_RETURN(const Hash128 digest,
                           DigestFromProto("header.weights_digest", header.weights_digest()));
    TITAN_ASSIGN_OR_RETURN(Manifest manifest, FromProto(header.manifest()));
    return library_.BeginImport(header.name(), std::move(manifest), header.bundle_bytes(), digest);
  };
  const std::function<Status(const Header&)> always = [](const Header&) { return OkStatus(); };
  const auto header = std::make_shared<Header>();
  TITAN_CO_ASSIGN_OR_RETURN(const Received received, co_await Receive(in, begin, always, header));
  TITAN_LOG(kInfo, "model_imported", {"id", received.stored.id}, {"name", header->name()},
            {"bytes", received.stored.num_bytes()}, {"existed", received.existed});
  v1::ImportModelResponse response;
  *response.mutable_model() = weightstore::ToProto(received.stored, /*whole=*/false);
  response.set_existed(received.existed);
  co_return response;
}

asio::awaitable<StatusOr<v1::PutCheckpointResponse>> WeightStoreGrpcService::DoPutCheckpoint(
    std::shared_ptr<rpc::RequestStream<v1::PutCheckpointRequest>> in) {
  using Header = v1::PutCheckpointHeader;
  using Import = std::unique_ptr<Library::Import>;
  const std::function<Status(const Header&)> is_trainer = [this](const Header& header) {
    return leader_.CheckTrainer(header.run_id(), header.epoch());
  };
  // Its version, held in its slot until it is on disk as well: the ring needs all but one of its
  // slots for itself.
  const auto source = std::make_shared<StatusOr<Leader::DiskSource>>(Unavailable(""));
  const std::function<StatusOr<Import>(const Header&)> begin =
      [this, is_trainer, source](const Header& header) -> StatusOr<Import> {
    TITAN_RETURN_IF_ERROR(is_trainer(header));
    *source = leader_.HoldForDisk(header.run_id(), header.version());
    TITAN_ASSIGN_OR_RETURN(const Hash128 digest, DigestFromProto("header.digest", header.digest()));
    TITAN_ASSIGN_OR_RETURN(Manifest manifest, FromProto(header.manifest()));
    return library_.BeginCheckpoint(header.run_id(), header.version(), std::move(manifest),
                                    header.facts_bytes(), digest);
  };
  const auto header = std::make_shared<Header>();
  TITAN_CO_ASSIGN_OR_RETURN(const Received received,
                            co_await Receive(in, begin, is_trainer, header));
  // The checkpoint counts without its version, too.
  const std::function<Status()> keep = [this, header, source]() -> Status {
    const std::string& run_id = header->run_id();
    if (source->ok()) return Keep(run_id, **source, /*in_reserved_room=*/false);
    if (!library_.FindVersion(run_id, header->version()).ok()) {  // by an earlier call
      NotKept(run_id, header->version(), source->status());
    }
    return OkStatus();
  };
  asio::steady_timer timer(server_.control());
  // Another version of the run is being written; this one is held meanwhile.
  while ((co_await blocking_.Run(keep)).code() == StatusCode::kAlreadyExists) {
    timer.expires_after(kKeepPeriod);
    co_await timer.async_wait(asio::use_awaitable);
  }
  const std::function<StatusOr<uint64_t>()> release = [this, header, source,
                                                       is_trainer]() -> StatusOr<uint64_t> {
    const std::string& run_id = header->run_id();
    *source = Cancelled("");  // no longer held
    // Its end may have come, and dropped what was recorded, just before this one was.
    if (!leader_.GoesOn(run_id)) (void)library_.DropCheckpoints(run_id);
    TITAN_RETURN_IF_ERROR(is_trainer(*header));
    StatusOr<uint64_t> freed = library_.ReleaseCheckpoints(run_id, header->needed_version());
    if (freed.ok()) return freed;
    TITAN_LOG(kWarning, "checkpoints_not_released", {"run_id", run_id}, {"status", freed.status()});
    return uint64_t{0};  // the new one is durable all the same
  };
  TITAN_CO_ASSIGN_OR_RETURN(const uint64_t freed_bytes, co_await blocking_.Run(release));
  TITAN_LOG(kInfo, "checkpoint_stored", {"run_id", header->run_id()},
            {"version", header->version()}, {"bytes", received.stored.num_bytes()},
            {"existed", received.existed}, {"freed_bytes", freed_bytes});
  v1::PutCheckpointResponse response;
  *response.mutable_checkpoint() = weightstore::ToProto(received.stored, /*whole=*/false);
  response.set_existed(received.existed);
  response.set_freed_bytes(freed_bytes);
  response.set_version_not_kept_reason(library_.NotKeptReason(header->run_id(), header->version()));
  co_return response;
}

asio::awaitable<void> WeightStoreGrpcService::KeepRuns() {
  asio::steady_timer timer(server_.control());
  for (const std::string& run_id : leader_.RunsThatGoOn()) {
    const std::function<Status()> keep = [this, run_id] { return KeepNewest(run_id); };
    while ((co_await blocking_.Run(keep)).code() == StatusCode::kAlreadyExists) {
      timer.expires_after(kKeepPeriod);
      co_await timer.async_wait(asio::use_awaitable);
    }
  }
}

grpc::ServerReadReactor<v1::PutCheckpointRequest>* WeightStoreGrpcService::PutCheckpoint(
    Context* context, v1::PutCheckpointResponse* response) {
  return rpc::ServeClientStream<v1::PutCheckpointRequest>(
      server_, context, response,
      [this](std::shared_ptr<rpc::RequestStream<v1::PutCheckpointRequest>> in) {
        return DoPutCheckpoint(std::move(in));
      });
}

StatusOr<v1::GetCheckpointResponse> WeightStoreGrpcService::Handle(
    const v1::GetCheckpointRequest& message) {
  TITAN_ASSIGN_OR_RETURN(
      const StoredModel checkpoint,
      library_.FindCheckpoint(message.run_id(), message.has_at_most()
                                                    ? std::optional(message.at_most())
                                                    : std::nullopt));
  v1::GetCheckpointResponse answer;
  *answer.mutable_checkpoint() = weightstore::ToProto(checkpoint, /*whole=*/true);
  return answer;
}

grpc::ServerReadReactor<v1::ImportModelRequest>* WeightStoreGrpcService::ImportModel(
    Context* context, v1::ImportModelResponse* response) {
  return rpc::ServeClientStream<v1::ImportModelRequest>(
      server_, context, response,
      [this](std::shared_ptr<rpc::RequestStream<v1::ImportModelRequest>> in) {
        return DoImport(std::move(in));
      });
}

asio::awaitable<StatusOr<v1::PutBundleResponse>> WeightStoreGrpcService::DoPutBundle(
    std::shared_ptr<rpc::RequestStream<v1::PutBundleRequest>> in) {
  auto bundle = std::make_shared<std::string>();
  for (;;) {
    StatusOr<std::optional<v1::PutBundleRequest>> next = co_await in->Next();
    if (!next.ok()) co_return next.status();
    if (!next->has_value()) break;
    if ((*next)->chunk().size() > kMaxChunkBytes) co_return TooLongChunk();
    if (bundle->size() + (*next)->chunk().size() > kMaxBundleBytes) {
      co_return InvalidArgument("chunk: the bundle has more than 256 MiB");
    }
    *bundle += (*next)->chunk();
  }
  const std::function<StatusOr<Hash128>()> put = [this, bundle] {
    return library_.PutBundle(*bundle);
  };
  const StatusOr<Hash128> digest = co_await blocking_.Run(put);
  if (!digest.ok()) co_return digest.status();
  v1::PutBundleResponse response;
  response.set_digest(ToHex(*digest));
  co_return response;
}

grpc::ServerReadReactor<v1::PutBundleRequest>* WeightStoreGrpcService::PutBundle(
    Context* context, v1::PutBundleResponse* response) {
  return rpc::ServeClientStream<v1::PutBundleRequest>(
      server_, context, response,
      [this](std::shared_ptr<rpc::RequestStream<v1::PutBundleRequest>> in) {
        return DoPutBundle(std::move(in));
      });
}

StatusOr<v1::GetStoredModelResponse> WeightStoreGrpcService::Handle(
    const v1::GetStoredModelRequest& message) {
  StatusOr<StoredModel> model = message.id().empty()
                                    ? library_.FindVersion(message.run_id(), message.version())
                                    : library_.FindModel(message.id());
  if (!model.ok()) return model.status();
  v1::GetStoredModelResponse answer;
  *answer.mutable_model() = weightstore::ToProto(*model, /*whole=*/true);
  return answer;
}

StatusOr<v1::ListStoredModelsResponse> WeightStoreGrpcService::Handle(
    const v1::ListStoredModelsRequest& message) {
  Place from;
  if (!message.page_token().empty()) {
    TITAN_ASSIGN_OR_RETURN(from, PlaceFromToken(message.page_token()));
  }
  v1::ListStoredModelsResponse answer;
  size_t num_bytes = 0;
  // False: the page is full, and the next one begins there.
  const auto add = [&](const StoredModel& stored, const Place& place, auto* list) {
    if (place < from) return true;
    if (num_bytes > kPageBytes) {
      answer.set_next_page_token(TokenOf(place));
      return false;
    }
    v1::StoredModel& out = *list->Add();
    out = weightstore::ToProto(stored, /*whole=*/false);
    num_bytes += out.ByteSizeLong();
    return true;
  };
  bool room = true;
  for (const StoredModel& model : library_.List()) {
    const Place place = model.run_id.empty()
                            ? Place{Place::kModel, model.stored_unix_ms, model.id, 0}
                            : Place{Place::kVersion, 0, model.run_id + "/", model.version};
    room = room && add(model, place, answer.mutable_models());
  }
  for (const StoredModel& checkpoint : library_.ListCheckpoints()) {
    const Place place = {Place::kCheckpoint, 0, checkpoint.run_id, checkpoint.version};
    room = room && add(checkpoint, place, answer.mutable_checkpoints());
  }
  TITAN_ASSIGN_OR_RETURN(const DiskUse disk, library_.Disk());
  answer.set_disk_used_bytes(disk.used_bytes);
  answer.set_disk_reserved_bytes(disk.reserved_bytes);
  answer.set_disk_available_bytes(disk.available_bytes);
  answer.set_keeps_nothing(disk.keeps_nothing);
  return answer;
}

StatusOr<v1::DeleteStoredModelResponse> WeightStoreGrpcService::Handle(
    const v1::DeleteStoredModelRequest& message) {
  if (message.request_id().empty()) return InvalidArgument("request_id: is required");
  const bool is_version = message.id().empty();
  if (is_version && leader_.GoesOn(message.run_id())) {
    TITAN_RETURN_IF_ERROR(library_.FindVersion(message.run_id(), message.version()).status());
    return FailedPrecondition(
        "version " + std::to_string(message.version()) + " of run " + message.run_id() +
        " stays while the run goes on: it is what a loss of power would leave of it; wait for the "
        "job's end, or cancel it first");
  }
  TITAN_ASSIGN_OR_RETURN(const uint64_t freed,
                         is_version ? library_.RemoveVersion(message.run_id(), message.version())
                                    : library_.RemoveModel(message.id()));
  TITAN_LOG(kInfo, "stored_model_deleted", {"id", message.id()}, {"run_id", message.run_id()},
            {"version", message.version()}, {"freed_bytes", freed});
  v1::DeleteStoredModelResponse answer;
  answer.set_freed_bytes(freed);
  return answer;
}

StatusOr<v1::CollectGarbageResponse> WeightStoreGrpcService::Handle(
    const v1::CollectGarbageRequest& message) {
  if (message.request_id().empty()) return InvalidArgument("request_id: is required");
  TITAN_ASSIGN_OR_RETURN(const Library::Collected collected,
                         library_.CollectVersions(message.keep_runs(), message.dry_run()));
  v1::CollectGarbageResponse answer;
  size_t num_bytes = 0;
  for (const StoredModel& model : collected.versions) {
    if (num_bytes > kPageBytes) break;
    *answer.add_versions() = weightstore::ToProto(model, /*whole=*/false);
    num_bytes += answer.versions().rbegin()->ByteSizeLong();
  }
  answer.set_versions_not_listed(static_cast<uint32_t>(
      collected.versions.size() - static_cast<size_t>(answer.versions_size())));
  answer.set_freed_bytes(collected.freed_bytes);
  answer.set_versions_left(static_cast<uint32_t>(collected.versions_left));
  if (!message.dry_run()) {
    TITAN_LOG(kInfo, "garbage_collected", {"versions", collected.versions.size()},
              {"freed_bytes", collected.freed_bytes});
  }
  return answer;
}

StatusOr<v1::ReadBlobResponse> WeightStoreGrpcService::Handle(const v1::ReadBlobRequest& message) {
  TITAN_ASSIGN_OR_RETURN(const Hash128 digest, DigestFromProto("digest", message.digest()));
  if (message.max_bytes() < 1 || message.max_bytes() > kMaxReadBytes) {
    return InvalidArgument("max_bytes: wants 1 to 2097152");
  }
  TITAN_ASSIGN_OR_RETURN(std::string bytes,
                         library_.ReadBlob(digest, message.offset(), message.max_bytes()));
  v1::ReadBlobResponse answer;
  answer.set_chunk(std::move(bytes));
  return answer;
}

}  // namespace titan::weightstore
