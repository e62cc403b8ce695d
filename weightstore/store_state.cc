// SPDX-License-Identifier: Apache-2.0
#include "weightstore/store_state.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "weightstore/store_state_errors.h"

namespace titan::weightstore {
std::string_view NameOf(VersionState state) {
  switch (state) {
    case VersionState::kOpen:
      return "OPEN";
    case VersionState::kSealed:
      return "SEALED";
    case VersionState::kCommitted:
      return "COMMITTED";
    case VersionState::kRetired:
      return "RETIRED";
    case VersionState::kFree:
      return "FREE";
    case VersionState::kAborted:
      return "ABORTED";
    case VersionState::kLost:
      return "LOST";
  }
  return "unknown";
}

Status CheckRunId(const std::string& run_id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (run_id.empty() || run_id.size() > 128 ||
      !std::all_of(run_id.begin(), run_id.end(), allowed)) {
    return InvalidArgument("run_id: must be 1 to 128 characters of A-Z a-z 0-9 . _ -");
  }
  return OkStatus();
}

StoreState::StoreState(uint64_t first_number, int64_t lease_ttl_ms, int64_t map_deadline_ms)
    : lease_ttl_ms_(lease_ttl_ms),
      map_deadline_ms_(map_deadline_ms),
      next_number_(std::max<uint64_t>(first_number, 1)) {}

// ---------------------------------------------------------------------------------------- restore

void StoreState::RestoreRun(const std::string& run_id, RunRecord record) {
  runs_[run_id].record = std::move(record);
}

Status StoreState::RestoreVersion(const std::string& run_id, uint64_t version,
                                  VersionRecord record) {
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) {
    return DataLoss("index: a record of " + Named(run_id, version) + ", but none of the run");
  }
  Run& run = found->second;
  if (version != run.num_records) {
    return DataLoss("index: " + Named(run_id, version) + " follows version " +
                    std::to_string(run.num_records) + ", which has no record");
  }
  ++run.num_records;
  Version& entry = run.versions[version];
  entry.digest = record.digest;
  entry.record = std::move(record);
  SetState(entry, VersionState::kLost);
  return OkStatus();
}

// ---------------------------------------------------------------------------------------- helpers

StatusOr<StoreState::Run*> StoreState::FindRun(const std::string& run_id) {
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) return NotFound("run " + run_id + ": no trainer has registered it");
  return &found->second;
}

StatusOr<const StoreState::Run*> StoreState::FindRun(const std::string& run_id) const {
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) return NotFound("run " + run_id + ": no trainer has registered it");
  return &found->second;
}

Status StoreState::CheckEpoch(const std::string& run_id, const Run& run, uint64_t epoch) const {
  if (epoch > run.record.trainer_epoch) {
    return InvalidArgument("epoch: " + std::to_string(epoch) + " was never issued for run " +
                           run_id);
  }
  if (epoch < run.record.trainer_epoch) {
    return Superseded("epoch " + std::to_string(epoch) + " of run " + run_id +
                      " is superseded by epoch " + std::to_string(run.record.trainer_epoch));
  }
  if (run.record.ended) return FailedPrecondition("run " + run_id + " has ended");
  if (!run.writer_alive) {
    return Superseded("epoch " + std::to_string(epoch) + " of run " + run_id +
                      " has no slots: its writer's connection closed; register again");
  }
  return OkStatus();
}

StatusOr<StoreState::Version*> StoreState::FindInProgress(const std::string& run_id, uint64_t epoch,
                                                          uint64_t version) {
  TITAN_ASSIGN_OR_RETURN(Run * run, FindRun(run_id));
  TITAN_RETURN_IF_ERROR(CheckEpoch(run_id, *run, epoch));
  if (run->in_progress != version) {
    return FailedPrecondition(Named(run_id, version) + " is not open");
  }
  return &run->versions.at(version);
}

void StoreState::SetState(Version& version, VersionState state) {
  version.state = state;
  version.changed = ++num_changes_;
  effects_.versions_changed = true;
}

void StoreState::Command(const std::string& host, HostCommand command) {
  effects_.commands.emplace_back(host, std::move(command));
}

void StoreState::RaiseGrant(uint64_t slot_id, uint64_t version, const Hash128& digest,
                            bool open_for_writing) {
  Slot& slot = slots_.at(slot_id);
  slot.grant = NextNumber();
  Command(slot.host, WriteHeader{{slot_id, version, slot.grant, digest}, open_for_writing});
}

void StoreState::RemoveSlot(uint64_t slot_id) {
  // A writer or reader that still maps the memory finds another grant number in its header.
  EndLeasesOf(slot_id);
  RaiseGrant(slot_id, 0, {});
  Command(slots_.at(slot_id).host, DropSlot{slot_id});
  slots_.erase(slot_id);
  effects_.slots_changed = true;  // whoever waits for it learns why
}

void StoreState::ReleaseSlot(Run& run, Version& version) {
  const uint64_t slot_id = std::exchange(version.slot_id, 0);
  Slot& slot = slots_.at(slot_id);
  slot.version.reset();
  effects_.slots_changed = true;
  if (!run.writer_alive || slot.epoch != run.record.trainer_epoch) RemoveSlot(slot_id);
}

void StoreState::AbortInProgress(Run& run) {
  if (!run.in_progress.has_value()) return;
  Version& version = run.versions.at(*run.in_progress);
  SetState(version, version.record.has_value() ? VersionState::kLost : VersionState::kAborted);
  version.verifying = false;
  RaiseGrant(version.slot_id, 0, {});  // its writer has no business there any more
  ReleaseSlot(run, version);
  run.in_progress.reset();
}

bool StoreState::IsLeased(uint64_t slot_id) const {
  return std::any_of(leases_.begin(), leases_.end(),
                     [&](const auto& entry) { return entry.second.slot_id == slot_id; });
}

void StoreState::EndLeasesOf(uint64_t slot_id) {
  std::erase_if(leases_, [&](const auto& entry) {
    if (entry.second.slot_id != slot_id) return false;
    Command(slots_.at(slot_id).host, EndLease{entry.first});
    return true;
  });
}

Effects StoreState::TakeEffects() { return std::exchange(effects_, {}); }

// --------------------------------------------------------------------------------------- versions

std::optional<uint64_t> StoreState::FindFreeSlot(const std::string& run_id, const Run& run) const {
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.run_id == run_id && slot.epoch == run.record.trainer_epoch && slot.made &&
        !slot.version.has_value()) {
      return slot_id;
    }
  }
  return std::nullopt;
}

uint64_t StoreState::OldestNeeded(const Run& run, uint64_t beginning) {
  const uint64_t span = uint64_t{run.record.max_age} + 1;
  return beginning > span ? beginning - span : 0;
}

void StoreState::RetireUnneeded(Run& run, uint64_t beginning, bool ring_is_full, int64_t now_ms) {
  const uint64_t oldest_needed = OldestNeeded(run, beginning);
  for (auto& [number, version] : run.versions) {
    if (number >= oldest_needed) break;
    if (version.state != VersionState::kCommitted) continue;
    const bool of_ring = slots_.at(version.slot_id).epoch == run.record.trainer_epoch;
    if (of_ring && !ring_is_full)
      continue;  // its memory is not wanted yet: late readers are served
    if (IsLeased(version.slot_id)) {
      SetState(version, VersionState::kRetired);
      version.retired_ms = now_ms;
      continue;
    }
    SetState(version, VersionState::kFree);
    ReleaseSlot(run, version);
    if (of_ring) ring_is_full = false;
  }
}

StatusOr<StoreState::BeginOutcome> StoreState::BeginVersion(const std::string& run_id,
                                                            uint64_t epoch, uint64_t version,
                                                            int64_t now_ms) {
  TITAN_ASSIGN_OR_RETURN(Run * run, FindRun(run_id));
  TITAN_RETURN_IF_ERROR(CheckEpoch(run_id, *run, epoch));
  if (version > run->num_records) {
    return InvalidArgument("version: " + std::to_string(version) + " would skip version " +
                           std::to_string(run->num_records) + " of run " + run_id);
  }
  BeginOutcome outcome;
  if (run->in_progress.has_value()) {
    if (*run->in_progress != version) {
      return FailedPrecondition(Named(run_id, *run->in_progress) +
                                " is in progress; commit it before version " +
                                std::to_string(version));
    }
    Version& entry = run->versions.at(version);
    if (entry.verifying) return FailedPrecondition(Named(run_id, version) + " is being verified");
    if (entry.state == VersionState::kSealed) {
      SetState(entry, VersionState::kOpen);
      RaiseGrant(entry.slot_id, version, {}, /*open_for_writing=*/true);
    }
    outcome.slot_id = entry.slot_id;
    outcome.grant = slots_.at(entry.slot_id).grant;
    return outcome;
  }
  const auto known = run->versions.find(version);
  if (known != run->versions.end() && known->second.record.has_value() &&
      known->second.state != VersionState::kLost) {
    outcome.kind = BeginOutcome::Kind::kRecorded;
    outcome.digest = known->second.record->digest;
    return outcome;
  }
  // Else the ring could fill with versions that are newer than the one that needs a slot.
  if (version < run->newest_opened) {
    return InvalidArgument("version: " + std::to_string(version) + " after version " +
                           std::to_string(run->newest_opened) + "; an epoch opens them in order");
  }
  if (FindAdoption(run_id, version) != 0) {
    outcome.kind = BeginOutcome::Kind::kBeingMade;
    outcome.blockers = Named(run_id, version) + " is being adopted from a reader";
    return outcome;
  }
  TITAN_RETURN_IF_ERROR(run->slots_failed);
  std::optional<uint64_t> free = FindFreeSlot(run_id, *run);
  const uint32_t being_made = NumBeingMade(run_id, *run);
  RetireUnneeded(*run, version, /*ring_is_full=*/!free.has_value() && being_made == 0, now_ms);
  if (!free.has_value()) free = FindFreeSlot(run_id, *run);
  if (!free.has_value() && being_made > 0) {
    outcome.kind = BeginOutcome::Kind::kBeingMade;
    outcome.blockers = std::to_string(being_made) + " slots of run " + run_id +
                       " are being made, the others are in use";
    for (const auto& [slot_id, slot] : slots_) {
      if (slot.run_id != run_id || slot.epoch != epoch || slot.made) continue;
      Command(slot.host, HurrySlots{});
      break;
    }
    return outcome;
  }
  if (!free.has_value()) {
    outcome.blockers = DescribeBlockers(run_id, *run, now_ms);
    // No step that is still to be generated needs a retired version, so its holders are stopped or
    // late. They find out by the slot's header.
    const std::string fenced = FenceOldestOverdue(*run, now_ms);
    if (!fenced.empty()) outcome.blockers = fenced;
    free = FindFreeSlot(run_id, *run);
  }
  if (!free.has_value()) {
    outcome.kind = BeginOutcome::Kind::kBlocked;
    return outcome;
  }
  Version& entry = run->versions[version];
  SetState(entry, VersionState::kOpen);
  entry.slot_id = *free;
  slots_.at(*free).version = version;
  RaiseGrant(*free, version, {}, /*open_for_writing=*/true);
  run->in_progress = version;
  run->newest_opened = version;
  outcome.slot_id = *free;
  outcome.grant = slots_.at(*free).grant;
  return outcome;
}

bool StoreState::IsOverdue(const Version& version, int64_t now_ms) const {
  return version.state == VersionState::kRetired &&
         now_ms - version.retired_ms >= map_deadline_ms_ &&
         std::none_of(leases_.begin(), leases_.end(), [&](const auto& entry) {
           return entry.second.slot_id == version.slot_id && entry.second.copy;
         });
}

std::string StoreState::FenceHolders(Run& run, uint64_t number, Version& version) {
  std::string text = "version " + std::to_string(number) + " was taken from";
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.slot_id == version.slot_id) text += " " + lease.holder;
  }
  EndLeasesOf(version.slot_id);
  RaiseGrant(version.slot_id, number, version.digest);
  SetState(version, VersionState::kFree);
  ReleaseSlot(run, version);
  return text;
}

std::string StoreState::FenceOldestOverdue(Run& run, int64_t now_ms) {
  for (auto& [number, version] : run.versions) {
    if (!IsOverdue(version, now_ms)) continue;
    if (slots_.at(version.slot_id).epoch != run.record.trainer_epoch) continue;
    return FenceHolders(run, number, version);
  }
  return "";
}

std::string StoreState::DescribeBlockers(const std::string& run_id, const Run& run,
                                         int64_t now_ms) const {
  std::string text = "the ring of run " + run_id + " is full";
  for (const auto& [lease_id, lease] : leases_) {
    const auto slot = slots_.find(lease.slot_id);
    const auto version = run.versions.find(lease.version);
    if (lease.run_id != run_id || slot == slots_.end() ||
        slot->second.epoch != run.record.trainer_epoch || version == run.versions.end() ||
        version->second.state != VersionState::kRetired) {
      continue;
    }
    text += "; version " + std::to_string(lease.version) + " is held by lease " +
            std::to_string(lease_id) + " of " + lease.holder + " for " +
            std::to_string(now_ms - lease.since_ms) + " ms";
  }
  return text;
}

StatusOr<std::optional<StoreState::SlotToVerify>> StoreState::StartVerify(const std::string& run_id,
                                                                          uint64_t epoch,
                                                                          uint64_t version,
                                                                          uint64_t grant,
                                                                          const Hash128& writers) {
  TITAN_ASSIGN_OR_RETURN(Version * entry, FindInProgress(run_id, epoch, version));
  const Slot& slot = slots_.at(entry->slot_id);
  if (slot.grant != grant) {
    return Aborted("grant " + std::to_string(grant) + " is stale for " + Named(run_id, version));
  }
  if (entry->verifying) return FailedPrecondition(Named(run_id, version) + " is being verified");
  if (entry->state == VersionState::kSealed) {
    if (entry->digest != writers) {
      return FailedPrecondition(Named(run_id, version) + " is sealed with digest " +
                                ToHex(entry->digest));
    }
    return std::optional<SlotToVerify>();
  }
  entry->verifying = true;
  return std::optional<SlotToVerify>({slot.host, entry->slot_id});
}

Status StoreState::FinishVerify(const std::string& run_id, uint64_t epoch, uint64_t version,
                                uint64_t grant, const Hash128& writers,
                                const StatusOr<Hash128>& read) {
  TITAN_ASSIGN_OR_RETURN(Version * entry, FindInProgress(run_id, epoch, version));
  if (slots_.at(entry->slot_id).grant != grant || !entry->verifying) {
    return Aborted(Named(run_id, version) + " was begun again while it was verified");
  }
  entry->verifying = false;
  if (!read.ok()) return read.status();
  if (writers != *read) {
    AbortInProgress(runs_.at(run_id));
    return WithReason(DataLoss(Named(run_id, version) + ": the writer's digest is " +
                               ToHex(writers) + ", the slot holds " + ToHex(*read)),
                      kDigestMismatch);
  }
  SetState(*entry, VersionState::kSealed);
  entry->digest = *read;
  Command(slots_.at(entry->slot_id).host, WriteHeader{{entry->slot_id, version, grant, *read}});
  return OkStatus();
}

StatusOr<StoreState::CommitPlan> StoreState::PlanCommit(const std::string& run_id, uint64_t epoch,
                                                        uint64_t version,
                                                        const Hash128& digest) const {
  TITAN_ASSIGN_OR_RETURN(const Run* run, FindRun(run_id));
  TITAN_RETURN_IF_ERROR(CheckEpoch(run_id, *run, epoch));
  const auto found = run->versions.find(version);
  if (found == run->versions.end()) return NotFound(Named(run_id, version) + " was never begun");
  const Version& entry = found->second;
  if (entry.record.has_value() && entry.record->digest != digest) {
    return Divergence(run_id, version, entry.record->digest, digest);
  }
  if (entry.record.has_value() && run->in_progress != version &&
      entry.state != VersionState::kLost) {
    return CommitPlan{true, entry.record};
  }
  if (entry.state != VersionState::kSealed) {
    return FailedPrecondition(Named(run_id, version) + " is " + std::string(NameOf(entry.state)) +
                              ", only a SEALED version can be committed");
  }
  if (entry.digest != digest) {
    return InvalidArgument("weights_digest: " + ToHex(digest) + ", but " + Named(run_id, version) +
                           " is sealed with " + ToHex(entry.digest));
  }
  return CommitPlan{false, entry.record};
}

void StoreState::ApplyCommit(const std::string& run_id, uint64_t epoch, uint64_t version,
                             const VersionRecord& record) {
  Run& run = runs_.at(run_id);
  Version& entry = run.versions.at(version);
  // The record stands, whatever happened to the writer while it was written.
  if (!entry.record.has_value()) {
    TITAN_CHECK(version == run.num_records);
    ++run.num_records;
    entry.record = record;
  }
  if (entry.state == VersionState::kSealed && entry.digest == record.digest &&
      run.record.trainer_epoch == epoch) {
    TITAN_CHECK(run.in_progress == version);
    SetState(entry, VersionState::kCommitted);
    run.in_progress.reset();
  } else if (entry.state == VersionState::kAborted) {
    SetState(entry, VersionState::kLost);
  }
}

}  // namespace titan::weightstore
