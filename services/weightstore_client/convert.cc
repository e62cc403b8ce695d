// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore_client/convert.h"

#include <utility>

#include "services/rpc/status_convert.h"
#include "weightstore/client/reason.h"

namespace titan::weightstore {
namespace {

struct Advice {
  std::string_view reason;
  std::string_view fix;
  int64_t retry_after_ms;
};

constexpr Advice kAdvice[] = {
    {kDivergence, "Start a new run: these weights are not the ones that were committed.", 0},
    {kEpochSuperseded, "End this trainer, or register it again.", 0},
    {kRingFull, "Let the workers that the message names release their versions, or end them.",
     1000},
    {kMemoryLimit, "Raise memory_limit_bytes of the weight store or use a smaller model.", 0},
    {kDiskLimit,
     "Delete models and kept versions with titanctl weights rm, raise disk_limit_bytes of "
     "the weight store, or set it to 0 to keep no versions.",
     0},
    {kVersionLost, "Resume the job: its trainer makes the version again.", 1000},
    {kVersionNotServed, "Ask for a committed version; ListVersions shows them.", 0},
    {kEvaluationSlotBusy, "Unpin the version that the message names and wait for its readers.",
     1000},
    {kNoRemoteLane,
     "Set data_plane_address of the weight store, or weightstore_socket of a reader on its host; "
     "where both are set, one end has require_rdma and the other no RDMA device.",
     0},
    {kDigestMismatch, "Begin the version again; if it comes back, test the machine's memory.", 0},
};

}  // namespace

namespace {

v1::TensorLayout ToProto(Layout layout) {
  switch (layout) {
    case Layout::kRows:
      return v1::TENSOR_LAYOUT_ROWS;
    case Layout::kPanels32:
      return v1::TENSOR_LAYOUT_PANELS32;
    case Layout::kPanels32K2:
      return v1::TENSOR_LAYOUT_PANELS32_K2;
  }
  return v1::TENSOR_LAYOUT_UNSPECIFIED;
}

}  // namespace

v1::Manifest ToProto(const Manifest& manifest) {
  v1::Manifest message;
  for (const TensorEntry& tensor : manifest.tensors) {
    v1::Tensor& entry = *message.add_tensors();
    entry.set_name(tensor.name);
    entry.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    entry.set_dtype(std::string(NameOf(tensor.dtype)));
    entry.set_layout(ToProto(tensor.layout));
    entry.set_offset(tensor.offset);
    entry.set_num_bytes(tensor.num_bytes);
  }
  message.set_slot_bytes(manifest.slot_bytes);
  message.set_model_config_json(manifest.model_config_json);
  message.set_contract_forward(manifest.contract_forward);
  message.set_contract_training(manifest.contract_training);
  message.set_numerics_mode(manifest.numerics_mode);
  message.set_bundle(manifest.bundle);
  for (const ContractItem& item : manifest.contract_items) {
    type::v1::ContractItem& out = *message.add_contract_items();
    out.set_name(item.name);
    out.set_value(item.value);
  }
  return message;
}

StatusOr<Manifest> FromProto(const v1::Manifest& message) {
  Manifest manifest;
  for (const v1::Tensor& entry : message.tensors()) {
    TensorEntry tensor;
    tensor.name = entry.name();
    tensor.shape.assign(entry.shape().begin(), entry.shape().end());
    StatusOr<DType> dtype = DTypeFromName(entry.dtype());
    if (!dtype.ok())
      return Annotate(dtype.status(), "manifest.tensors[" + entry.name() + "].dtype");
    tensor.dtype = *dtype;
    switch (entry.layout()) {
      case v1::TENSOR_LAYOUT_ROWS:
        tensor.layout = Layout::kRows;
        break;
      case v1::TENSOR_LAYOUT_PANELS32:
        tensor.layout = Layout::kPanels32;
        break;
      case v1::TENSOR_LAYOUT_PANELS32_K2:
        tensor.layout = Layout::kPanels32K2;
        break;
      default:
        return InvalidArgument("manifest.tensors[" + entry.name() +
                               "].layout: must be rows, panels32 or panels32k2");
    }
    tensor.offset = entry.offset();
    tensor.num_bytes = entry.num_bytes();
    manifest.tensors.push_back(std::move(tensor));
  }
  manifest.slot_bytes = message.slot_bytes();
  manifest.model_config_json = message.model_config_json();
  manifest.contract_forward = message.contract_forward();
  manifest.contract_training = message.contract_training();
  if (!message.numerics_mode().empty()) manifest.numerics_mode = message.numerics_mode();
  manifest.bundle = message.bundle();
  for (const type::v1::ContractItem& item : message.contract_items()) {
    manifest.contract_items.push_back({item.name(), item.value()});
  }
  TITAN_RETURN_IF_ERROR(Validate(manifest));
  return manifest;
}

v1::StoredModel ToProto(const StoredModel& model, bool whole) {
  v1::StoredModel message;
  message.set_id(model.id);
  for (const std::string& name : model.names) message.add_names(name);
  message.set_run_id(model.run_id);
  message.set_version(model.version);
  message.set_weights_digest(ToHex(model.weights_digest));
  message.set_bundle(model.bundle);
  message.set_bundle_bytes(model.bundle_bytes);
  message.set_stored_unix_ms(model.stored_unix_ms);
  message.set_num_bytes(model.num_bytes());
  if (!whole) return message;
  *message.mutable_manifest() = ToProto(*model.manifest);
  for (const Hash128& blob : model.blobs) message.add_blobs(ToHex(blob));
  return message;
}

StatusOr<StoredModel> FromProto(const v1::StoredModel& message) {
  StoredModel model;
  model.id = message.id();
  model.names.assign(message.names().begin(), message.names().end());
  model.run_id = message.run_id();
  model.version = message.version();
  TITAN_ASSIGN_OR_RETURN(model.weights_digest,
                         DigestFromProto("model.weights_digest", message.weights_digest()));
  model.bundle = message.bundle();
  model.bundle_bytes = message.bundle_bytes();
  model.stored_unix_ms = message.stored_unix_ms();
  TITAN_ASSIGN_OR_RETURN(Manifest manifest, FromProto(message.manifest()));
  model.manifest = std::make_shared<const Manifest>(std::move(manifest));
  for (const std::string& hex : message.blobs()) {
    TITAN_ASSIGN_OR_RETURN(const Hash128 blob, DigestFromProto("model.blobs", hex));
    model.blobs.push_back(blob);
  }
  if (model.blobs.size() != model.manifest->tensors.size()) {
    return InvalidArgument("model.blobs: must be one for each tensor");
  }
  return model;
}

v1::Lane ToProto(Lane lane) { return static_cast<v1::Lane>(lane); }

StatusOr<Lane> FromProto(v1::Lane lane) {
  if (lane == v1::LANE_UNSPECIFIED || !v1::Lane_IsValid(lane)) {
    return InvalidArgument("lane: " + std::to_string(lane) + " is none");
  }
  return static_cast<Lane>(lane);
}

StatusOr<Hash128> DigestFromProto(std::string_view field, const std::string& hex) {
  Hash128 digest;
  if (!FromHex(hex, &digest)) {
    return InvalidArgument(std::string(field) + ": must be 32 lower-case hex digits");
  }
  return digest;
}

Status ReasonToRpc(const Status& status) {
  if (status.ok()) return status;
  const std::string reason = ReasonOf(status);
  for (const Advice& advice : kAdvice) {
    if (advice.reason == reason) {
      return rpc::WithReason(status, reason, advice.fix, advice.retry_after_ms);
    }
  }
  return status;
}

Status ReasonFromRpc(const Status& status) {
  if (status.ok()) return status;
  const std::string reason = rpc::ReasonOf(status);
  return reason.empty() ? status : WithReason(status, reason);
}

}  // namespace titan::weightstore
