// SPDX-License-Identifier: Apache-2.0
#include "services/trainer/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "services/models/manifest_of.h"
#include "titan/storage/v1/storage.pb.h"
#include "weightstore/client/weights_digest.h"

namespace titan::services {
namespace {

constexpr std::string_view kPrefixes[kCheckpointArrays] = {"", "first_moment/", "second_moment/"};
constexpr uint64_t kPartBytes = 1 << 20;

// An entry lies within one of the arrays.
template <typename Byte>
Byte* At(const std::array<Byte*, kCheckpointArrays>& arrays, const weightstore::Manifest& manifest,
         const weightstore::TensorEntry& tensor) {
  const uint64_t array_bytes = manifest.slot_bytes / kCheckpointArrays;
  return arrays[tensor.offset / array_bytes] + tensor.offset % array_bytes;
}

}  // namespace

weightstore::Manifest CheckpointManifest(const weightstore::Manifest& run,
                                         const model::ParameterTable& master) {
  weightstore::Manifest manifest = run;
  manifest.tensors.clear();
  manifest.bundle.clear();
  const auto array_bytes = static_cast<uint64_t>(master.slot_bytes());
  manifest.slot_bytes = array_bytes * kCheckpointArrays;
  for (size_t array = 0; array < kCheckpointArrays; ++array) {
    for (const model::Parameter& parameter : master.parameters()) {
      weightstore::TensorEntry entry = EntryOf(parameter);
      entry.name.insert(0, kPrefixes[array]);
      entry.offset += array * array_bytes;
      manifest.tensors.push_back(std::move(entry));
    }
  }
  return manifest;
}

Status CheckSameRun(const weightstore::Manifest& there, const weightstore::Manifest& here) {
  const auto differs = [](const std::string& what) {
    return FailedPrecondition("the checkpoint is of another run: " + what + " differs");
  };
  if (there.numerics_mode != here.numerics_mode) {
    return differs("numerics_mode (" + there.numerics_mode + " there, " + here.numerics_mode +
                   " here)");
  }
  if (there.model_config_json != here.model_config_json) return differs("model_config_json");
  if (there.contract_forward != here.contract_forward ||
      there.contract_training != here.contract_training) {
    const std::string item = weightstore::DifferingItem(there.contract_items, here.contract_items);
    return differs("the numerics contract (" + (item.empty() ? "its digest" : item) + ")");
  }
  if (there.slot_bytes != here.slot_bytes || there.tensors.size() != here.tensors.size()) {
    return differs("the number or size of tensors");
  }
  for (size_t i = 0; i < here.tensors.size(); ++i) {
    if (!(there.tensors[i] == here.tensors[i])) return differs("tensor " + here.tensors[i].name);
  }
  return OkStatus();
}

std::string EncodeFacts(const CheckpointFacts& facts) {
  storage::v1::CheckpointFacts message;
  message.set_weights_digest(ToHex(facts.weights_digest));
  message.set_optimizer_steps(facts.powers.step);
  message.set_beta1_power(facts.powers.beta1_power);
  message.set_beta2_power(facts.powers.beta2_power);
  return message.SerializeAsString();
}

StatusOr<CheckpointFacts> DecodeFacts(std::string_view bytes) {
  storage::v1::CheckpointFacts message;
  CheckpointFacts facts;
  if (bytes.size() > 4096 ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      !FromHex(message.weights_digest(), &facts.weights_digest)) {
    return DataLoss("the facts of a checkpoint are damaged");
  }
  facts.powers.step = message.optimizer_steps();
  facts.powers.beta1_power = message.beta1_power();
  facts.powers.beta2_power = message.beta2_power();
  return facts;
}

Hash128 CheckpointDigest(const weightstore::Manifest& manifest, const CheckpointArrays& arrays) {
  Hash128 sum;
  for (const weightstore::TensorEntry& tensor : manifest.tensors) {
    sum += weightstore::TensorDigest(tensor, At(arrays, manifest, tensor));
  }
  return sum;
}

std::string CheckpointBytes::Next() {
  if (tensor_ == manifest_.tensors.size()) return {};
  const weightstore::TensorEntry& tensor = manifest_.tensors[tensor_];
  const uint64_t count = std::min(kPartBytes, tensor.num_bytes - done_);
  const std::byte* from = At(arrays_, manifest_, tensor) + done_;
  done_ += count;
  if (done_ == tensor.num_bytes) {
    ++tensor_;
    done_ = 0;
  }
  return std::string(reinterpret_cast<const char*>(from), count);
}

StatusOr<CheckpointFacts> ReadCheckpoint(weightstore::ModelPort& models,
                                         const weightstore::StoredModel& stored,
                                         const std::array<std::byte*, kCheckpointArrays>& arrays) {
  Hash128 facts;
  if (!FromHex(stored.bundle, &facts)) return DataLoss("the checkpoint has no facts");
  for (size_t i = 0; i < stored.manifest->tensors.size(); ++i) {
    const weightstore::TensorEntry& tensor = stored.manifest->tensors[i];
    const auto bytes = models.ReadBlob(stored.blobs[i], tensor.num_bytes);
    if (!bytes.ok()) return Annotate(bytes.status(), "checkpoint, tensor " + tensor.name);
    std::memcpy(At(arrays, *stored.manifest, tensor), bytes->data(), bytes->size());
  }
  TITAN_ASSIGN_OR_RETURN(const std::string bytes, models.ReadBlob(facts, stored.bundle_bytes));
  return DecodeFacts(bytes);
}

}  // namespace titan::services
