// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/store_client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "clients/cluster/cluster.h"
#include "clients/cluster/peer_status.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/files.h"
#include "services/rpc/channel.h"
#include "services/rpc/status_convert.h"
#include "services/weightstore_client/standalone_leader.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"
#include "weightstore/client/subscriber.h"

namespace titan::cli {
namespace {

constexpr std::chrono::seconds kDeadline{10};
constexpr std::chrono::seconds kCollectDeadline{120};  // many files may go
constexpr uint64_t kReadBytes = 2u << 20;              // most that the store reads at a time

}  // namespace

struct StoreClient::Impl {
  std::unique_ptr<weightstore::v1::WeightStoreService::StubInterface> stub;
  std::unique_ptr<weightstore::StandaloneLeader> leader;
  std::string socket_path;
  std::string data_folder;

  Status Failed(const grpc::Status& status) const {
    return cluster::FromPeer(status, "weight store", "WEIGHT_STORE_DOWN",
                             cluster::FixOfGone(data_folder));
  }
};

StoreClient::StoreClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreClient::~StoreClient() = default;

StatusOr<std::unique_ptr<StoreClient>> StoreClient::Open(const std::string& data_folder) {
  const Status runs = cluster::OrchestratorAddressOf(data_folder).status();
  if (!runs.ok()) return Unavailable(MessageOf(runs));
  TITAN_ASSIGN_OR_RETURN(const std::string text,
                         runtime::ReadFile(cluster::EndpointsPath(data_folder), 16u << 20));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  auto impl = std::make_unique<Impl>();
  impl->data_folder = data_folder;
  std::string address;
  if (json.is_object() && json.contains("endpoints") && json["endpoints"].is_array()) {
    impl->socket_path = json.value("weightstore_socket", "");
    for (const auto& item : json["endpoints"]) {
      const auto endpoint = runtime::EndpointFromJsonText(item.dump());
      if (endpoint.ok() && endpoint->role == "weightstore") address = endpoint->address;
    }
  }
  if (address.empty()) {
    return Unavailable("'" + cluster::EndpointsPath(data_folder) + "' names no weight store");
  }
  TITAN_ASSIGN_OR_RETURN(const auto channel, rpc::MakeChannel(address));
  impl->stub = weightstore::v1::WeightStoreService::NewStub(channel);
  TITAN_ASSIGN_OR_RETURN(impl->leader, weightstore::StandaloneLeader::Create(address));
  return std::unique_ptr<StoreClient>(new StoreClient(std::move(impl)));
}

weightstore::GrpcLeader& StoreClient::models() { return impl_->leader->port(); }

StatusOr<weightstore::v1::ListStoredModelsResponse> StoreClient::ListStoredModels() {
  weightstore::v1::ListStoredModelsRequest request;
  weightstore::v1::ListStoredModelsResponse all;
  for (;;) {
    weightstore::v1::ListStoredModelsResponse page;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    const grpc::Status status = impl_->stub->ListStoredModels(&context, request, &page);
    if (!status.ok()) return impl_->Failed(status);
    request.set_page_token(page.next_page_token());
    all.MergeFrom(page);
    all.clear_next_page_token();
    if (request.page_token().empty() || page.models_size() + page.checkpoints_size() == 0) {
      return all;
    }
  }
}

StatusOr<uint64_t> StoreClient::Delete(const weightstore::v1::DeleteStoredModelRequest& request) {
  weightstore::v1::DeleteStoredModelResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  const grpc::Status status = impl_->stub->DeleteStoredModel(&context, request, &response);
  if (!status.ok()) return impl_->Failed(status);
  return response.freed_bytes();
}

StatusOr<weightstore::v1::CollectGarbageResponse> StoreClient::CollectGarbage(
    const weightstore::v1::CollectGarbageRequest& request) {
  weightstore::v1::CollectGarbageResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCollectDeadline);
  const grpc::Status status = impl_->stub->CollectGarbage(&context, request, &response);
  if (!status.ok()) return impl_->Failed(status);
  return response;
}

StatusOr<std::string> StoreClient::ReadBlobPart(const Hash128& digest, uint64_t offset,
                                                uint64_t max_bytes) {
  weightstore::v1::ReadBlobRequest request;
  request.set_digest(ToHex(digest));
  request.set_offset(offset);
  request.set_max_bytes(static_cast<uint32_t>(std::min(max_bytes, kReadBytes)));
  weightstore::v1::ReadBlobResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  const grpc::Status status = impl_->stub->ReadBlob(&context, request, &response);
  if (!status.ok()) return impl_->Failed(status);
  return std::move(*response.mutable_chunk());
}

StatusOr<weightstore::v1::ListVersionsResponse> StoreClient::ListVersions(
    const std::string& run_id) {
  weightstore::v1::ListVersionsRequest request;
  request.set_run_id(run_id);
  weightstore::v1::ListVersionsResponse all;
  for (;;) {
    weightstore::v1::ListVersionsResponse page;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    const grpc::Status status = impl_->stub->ListVersions(&context, request, &page);
    if (!status.ok()) return impl_->Failed(status);
    const uint64_t next = page.next_version();
    all.MergeFrom(page);
    all.clear_next_version();
    if (next <= request.from_version()) return all;  // 0: the end
    request.set_from_version(next);
  }
}

StatusOr<weightstore::HeldVersion> StoreClient::Map(const std::string& run_id, uint64_t version) {
  const weightstore::Subscriber subscriber(impl_->leader->port(), impl_->socket_path,
                                           "titanctl-" + std::to_string(getpid()));
  return subscriber.Acquire(run_id, version, /*evaluation=*/false);
}

}  // namespace titan::cli
