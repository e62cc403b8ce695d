// SPDX-License-Identifier: Apache-2.0
// Checkpoints of runs that go on, and which versions stay beside them. Imports and versions:
// library.cc.
#include <limits>
#include <utility>

#include "weightstore/library.h"
#include "weightstore/library_index.h"
#include "weightstore/store_state.h"

namespace titan::weightstore {
namespace {

std::string KeyOf(const std::string& run_id, uint64_t version) {
  return std::string(kCheckpointPrefix) + run_id + "/" + storage::BigEndianKey(version);
}

std::string Named(const std::string& run_id, uint64_t version) {
  return "the checkpoint of run " + run_id + " at version " + std::to_string(version);
}

}  // namespace

StatusOr<std::unique_ptr<Library::Import>> Library::BeginCheckpoint(const std::string& run_id,
                                                                    uint64_t version,
                                                                    Manifest manifest,
                                                                    uint64_t facts_bytes,
                                                                    const Hash128& digest) {
  TITAN_RETURN_IF_ERROR(CheckRunId(run_id));
  if (options_.disk_limit_bytes == uint64_t{0}) {
    return FailedPrecondition(
        "the weight store keeps nothing on disk: its disk_limit_bytes is 0; raise it, or leave out "
        "training.checkpoint_every_steps");
  }
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<Import> import,
                         Begin(std::move(manifest), facts_bytes, digest, Named(run_id, version)));
  import->checkpoint_ = true;
  import->model_.run_id = run_id;
  import->model_.version = version;
  return import;
}

StatusOr<StoredModel> Library::PutCheckpoint(StoredModel checkpoint, bool* existed) {
  const std::pair key(checkpoint.run_id, checkpoint.version);
  const auto known = checkpoints_.find(key);
  *existed = known != checkpoints_.end();
  if (*existed && known->second.id == checkpoint.id) return known->second;
  if (*existed) {
    return FailedPrecondition(Named(checkpoint.run_id, checkpoint.version) + " has digest " +
                              ToHex(known->second.weights_digest) + ", the one that came " +
                              ToHex(checkpoint.weights_digest) +
                              ": the run does not repeat itself");
  }
  checkpoint.stored_unix_ms = options_.unix_ms();
  TITAN_RETURN_IF_ERROR(WriteRecord(KeyOf(checkpoint.run_id, checkpoint.version), checkpoint));
  return checkpoints_[key] = std::move(checkpoint);
}

StatusOr<StoredModel> Library::FindCheckpoint(const std::string& run_id,
                                              std::optional<uint64_t> at_most) const {
  const std::lock_guard lock(mutex_);
  auto found =
      checkpoints_.upper_bound({run_id, at_most.value_or(std::numeric_limits<uint64_t>::max())});
  if (found == checkpoints_.begin() || (--found)->first.first != run_id) {
    return NotFound(
        "run " + run_id + " has no checkpoint" +
        (at_most.has_value() ? " at or below version " + std::to_string(*at_most) : ""));
  }
  return found->second;
}

std::vector<StoredModel> Library::ListCheckpoints() const {
  const std::lock_guard lock(mutex_);
  std::vector<StoredModel> all;
  for (const auto& [key, checkpoint] : checkpoints_) all.push_back(checkpoint);
  return all;
}

bool Library::HasCheckpoint(const std::string& run_id) const {
  const auto first = checkpoints_.lower_bound({run_id, 0});
  return first != checkpoints_.end() && first->first.first == run_id;
}

StatusOr<uint64_t> Library::EraseCheckpoints(const std::string& run_id, uint64_t end_version) {
  const auto first = checkpoints_.lower_bound({run_id, 0});
  const auto end = checkpoints_.lower_bound({run_id, end_version});
  const auto first_version = models_.lower_bound(StoredVersionKey(run_id, 0));
  auto end_versions = models_.upper_bound(StoredVersionKey(run_id, end_version));
  if (first_version != end_versions) --end_versions;  // the newest stays
  if (first == end && first_version == end_versions) return uint64_t{0};
  storage::WriteBatch batch;
  for (auto it = first; it != end; ++it) batch.Erase(KeyOf(run_id, it->first.second));
  for (auto it = first_version; it != end_versions; ++it) batch.Erase(it->first);
  TITAN_RETURN_IF_ERROR(records_.Write(batch, storage::Durability::kSynced));
  checkpoints_.erase(first, end);
  models_.erase(first_version, end_versions);
  return Collect();
}

StatusOr<uint64_t> Library::ReleaseCheckpoints(const std::string& run_id, uint64_t needed) {
  const StatusOr<StoredModel> oldest = FindCheckpoint(run_id, needed);
  if (!oldest.ok()) return uint64_t{0};  // all are newer
  const std::lock_guard lock(mutex_);
  return EraseCheckpoints(run_id, oldest->version);
}

StatusOr<uint64_t> Library::DropCheckpoints(const std::string& run_id) {
  const std::lock_guard lock(mutex_);
  return EraseCheckpoints(run_id, std::numeric_limits<uint64_t>::max());
}

}  // namespace titan::weightstore
