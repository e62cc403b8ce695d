// SPDX-License-Identifier: Apache-2.0
#include "weightstore/index.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "titan/storage/v1/storage.pb.h"

namespace titan::weightstore {
namespace {

constexpr std::string_view kRunPrefix = "run/";
constexpr std::string_view kVersionPrefix = "version/";
constexpr std::string_view kOrchestratorEpochKey = "epoch/orchestrator";
constexpr size_t kNumberBytes = 8;

std::string RunKey(const std::string& run_id) { return std::string(kRunPrefix) + run_id; }

std::string VersionKey(const std::string& run_id, uint64_t version) {
  return std::string(kVersionPrefix) + run_id + "/" + storage::BigEndianKey(version);
}

template <typename Message>
bool Parse(std::string_view bytes, Message* message) {
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) return false;
  return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

Status RestoreRun(std::string_view key, std::string_view value, StoreState& state) {
  const std::string run_id(key.substr(kRunPrefix.size()));
  titan::storage::v1::RunRecord message;
  if (!Parse(value, &message) || message.run_id() != run_id || !CheckRunId(run_id).ok()) {
    return DataLoss("index: the record of run " + run_id + " is damaged");
  }
  StatusOr<Manifest> manifest = DecodeManifest(message.manifest());
  if (!manifest.ok()) return Annotate(manifest.status(), "index: run " + run_id);
  RunRecord record;
  record.trainer_epoch = message.trainer_epoch();
  record.max_age = message.max_age();
  record.evaluation_slots = std::max(message.evaluation_slots(), 1u);  // 0: there was one kind
  record.ended = message.ended();
  record.manifest = std::make_shared<const Manifest>(*std::move(manifest));
  state.RestoreRun(run_id, std::move(record));
  return OkStatus();
}

Status RestoreVersion(std::string_view key, std::string_view value, StoreState& state) {
  key.remove_prefix(kVersionPrefix.size());
  if (key.size() <= kNumberBytes + 1) return DataLoss("index: a version's key is damaged");
  const std::string run_id(key.substr(0, key.size() - kNumberBytes - 1));
  const uint64_t version =
      storage::NumberFromBigEndianKey(key.substr(key.size() - kNumberBytes)).value_or(0);
  titan::storage::v1::VersionRecord message;
  VersionRecord record;
  if (!Parse(value, &message) || message.version() != version ||
      !FromHex(message.weights_digest(), &record.digest)) {
    return DataLoss("index: the record of version " + std::to_string(version) + " of run " +
                    run_id + " is damaged");
  }
  record.plan_digest = message.plan_digest();
  record.train_step = message.train_step();
  record.committed_unix_ms = message.committed_unix_ms();
  return state.RestoreVersion(run_id, version, std::move(record));
}

}  // namespace

Status Index::Restore(StoreState& state) const {
  Status failure;
  const auto visit_with = [&](auto restore) {
    return [&failure, &state, restore](std::string_view key, std::string_view value) {
      failure = restore(key, value, state);
      return failure.ok();
    };
  };
  TITAN_RETURN_IF_ERROR(store_.ScanPrefix(kRunPrefix, visit_with(RestoreRun)));
  TITAN_RETURN_IF_ERROR(failure);
  TITAN_RETURN_IF_ERROR(store_.ScanPrefix(kVersionPrefix, visit_with(RestoreVersion)));
  TITAN_RETURN_IF_ERROR(failure);
  TITAN_ASSIGN_OR_RETURN(const auto epoch, store_.Get(kOrchestratorEpochKey));
  if (epoch.has_value()) {
    titan::storage::v1::EpochRecord message;
    if (!Parse(*epoch, &message)) return DataLoss("index: the orchestrator's epoch is damaged");
    state.RestoreOrchestratorEpoch(message.epoch());
  }
  return OkStatus();
}

Status Index::PutRun(const std::string& run_id, const RunRecord& record) {
  titan::storage::v1::RunRecord message;
  message.set_run_id(run_id);
  message.set_trainer_epoch(record.trainer_epoch);
  message.set_manifest(EncodeManifest(*record.manifest));
  message.set_max_age(record.max_age);
  message.set_evaluation_slots(record.evaluation_slots);
  message.set_ended(record.ended);
  storage::WriteBatch batch;
  batch.Put(RunKey(run_id), message.SerializeAsString());
  return store_.Write(batch, storage::Durability::kSynced);
}

Status Index::PutVersion(const std::string& run_id, uint64_t version, const VersionRecord& record) {
  titan::storage::v1::VersionRecord message;
  message.set_version(version);
  message.set_weights_digest(ToHex(record.digest));
  message.set_plan_digest(record.plan_digest);
  message.set_train_step(record.train_step);
  message.set_committed_unix_ms(record.committed_unix_ms);
  storage::WriteBatch batch;
  batch.Put(VersionKey(run_id, version), message.SerializeAsString());
  return store_.Write(batch, storage::Durability::kSynced);
}

Status Index::PutOrchestratorEpoch(uint64_t epoch) {
  titan::storage::v1::EpochRecord message;
  message.set_epoch(epoch);
  storage::WriteBatch batch;
  batch.Put(kOrchestratorEpochKey, message.SerializeAsString());
  return store_.Write(batch, storage::Durability::kSynced);
}

}  // namespace titan::weightstore
