// SPDX-License-Identifier: Apache-2.0
// The RPCs of what is kept on disk.
#include <functional>
#include <memory>
#include <string>
#include <utility>

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

Status TooLongChunk() { return InvalidArgument("chunk: has more than 1 MiB"); }

}  // namespace

asio::awaitable<StatusOr<v1::ImportModelResponse>> WeightStoreGrpcService::DoImport(
    std::shared_ptr<rpc::RequestStream<v1::ImportModelRequest>> in) {
  StatusOr<std::optional<v1::ImportModelRequest>> first = co_await in->Next();
  if (!first.ok()) co_return first.status();
  if (!first->has_value() || !(*first)->has_header()) {
    co_return InvalidArgument("header: must be the first message");
  }
  const auto header = std::make_shared<const v1::ImportModelHeader>((*first)->header());
  if (header->request_id().empty()) co_return InvalidArgument("header.request_id: is required");
  using Import = std::unique_ptr<Library::Import>;
  const std::function<StatusOr<Import>()> begin = [this, header]() -> StatusOr<Import> {
    TITAN_ASSIGN_OR_RETURN(const Hash128 digest,
                           DigestFromProto("header.weights_digest", header->weights_digest()));
    TITAN_ASSIGN_OR_RETURN(Manifest manifest, FromProto(header->manifest()));
    return library_.BeginImport(header->name(), std::move(manifest), header->bundle_bytes(),
                                digest);
  };
  StatusOr<Import> begun = co_await blocking_.Run(begin);
  if (!begun.ok()) co_return begun.status();
  const auto import = std::make_shared<Import>(*std::move(begun));
  Status status;
  while (status.ok()) {
    StatusOr<std::optional<v1::ImportModelRequest>> next = co_await in->Next();
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
  auto existed = std::make_shared<bool>(false);
  const std::function<StatusOr<StoredModel>()> finish = [import, existed,
                                                         status]() -> StatusOr<StoredModel> {
    const Import ends_here = std::move(*import);  // files are removed on this thread
    TITAN_RETURN_IF_ERROR(status);
    return ends_here->Finish(existed.get());
  };
  const StatusOr<StoredModel> stored = co_await blocking_.Run(finish);
  if (!stored.ok()) co_return stored.status();
  TITAN_LOG(kInfo, "model_imported", {"id", stored->id}, {"name", header->name()},
            {"bytes", stored->num_bytes()}, {"existed", *existed});
  v1::ImportModelResponse response;
  *response.mutable_model() = weightstore::ToProto(*stored, /*whole=*/false);
  response.set_existed(*existed);
  co_return response;
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
    const v1::ListStoredModelsRequest&) {
  v1::ListStoredModelsResponse answer;
  for (const StoredModel& model : library_.List()) {
    *answer.add_models() = weightstore::ToProto(model, /*whole=*/false);
  }
  TITAN_ASSIGN_OR_RETURN(const DiskUse disk, library_.Disk());
  answer.set_disk_used_bytes(disk.used_bytes);
  answer.set_disk_reserved_bytes(disk.reserved_bytes);
  answer.set_disk_available_bytes(disk.available_bytes);
  return answer;
}

StatusOr<v1::DeleteStoredModelResponse> WeightStoreGrpcService::Handle(
    const v1::DeleteStoredModelRequest& message) {
  if (message.request_id().empty()) return InvalidArgument("request_id: is required");
  const StatusOr<uint64_t> freed = message.id().empty()
                                       ? library_.RemoveVersion(message.run_id(), message.version())
                                       : library_.RemoveModel(message.id());
  if (!freed.ok()) return freed.status();
  TITAN_LOG(kInfo, "stored_model_deleted", {"id", message.id()}, {"run_id", message.run_id()},
            {"version", message.version()}, {"freed_bytes", *freed});
  v1::DeleteStoredModelResponse answer;
  answer.set_freed_bytes(*freed);
  return answer;
}

StatusOr<v1::CollectGarbageResponse> WeightStoreGrpcService::Handle(
    const v1::CollectGarbageRequest& message) {
  if (message.request_id().empty()) return InvalidArgument("request_id: is required");
  TITAN_ASSIGN_OR_RETURN(const Library::Collected collected,
                         library_.CollectVersions(message.keep_runs(), message.dry_run()));
  v1::CollectGarbageResponse answer;
  for (const StoredModel& model : collected.versions) {
    *answer.add_versions() = weightstore::ToProto(model, /*whole=*/false);
  }
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
