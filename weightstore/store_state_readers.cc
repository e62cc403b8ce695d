// SPDX-License-Identifier: Apache-2.0
// Readers and operators. Evaluation: store_state_evaluation.cc.
#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "weightstore/store_state.h"
#include "weightstore/store_state_errors.h"

namespace titan::weightstore {

// ---------------------------------------------------------------------------------------- readers

Status StoreState::CheckServed(const std::string& run_id, const Run& run, uint64_t version) const {
  const auto found = run.versions.find(version);
  if (found == run.versions.end()) return NotFound(Named(run_id, version) + " does not exist");
  const VersionState state = found->second.state;
  if (state == VersionState::kCommitted) return OkStatus();
  if (state == VersionState::kLost) {
    return WithReason(Unavailable(Named(run_id, version) + " is LOST: no memory holds it any more"),
                      kVersionLost);
  }
  if (found->second.record.has_value() &&
      (state == VersionState::kOpen || state == VersionState::kSealed)) {
    return WithReason(Unavailable(Named(run_id, version) + " was LOST and is being made again"),
                      kVersionLost);
  }
  return NotServed(Named(run_id, version) + " is " + std::string(NameOf(state)) +
                   ", only a COMMITTED version can be read");
}

StatusOr<StoreState::LeaseGrant> StoreState::GrantLease(const std::string& holder,
                                                        const std::string& run_id, uint64_t version,
                                                        bool evaluation, int64_t now_ms) {
  if (holder.empty() || holder.size() > 256) {
    return InvalidArgument("holder: must have 1 to 256 bytes");
  }
  TITAN_ASSIGN_OR_RETURN(Run * run, FindRun(run_id));
  uint64_t slot_id;
  Hash128 digest;
  if (evaluation) {
    const auto found =
        std::find_if(run->evaluations.begin(), run->evaluations.end(), [&](const Evaluation& e) {
          return e.state == Evaluation::State::kFilled && e.version == version;
        });
    if (found == run->evaluations.end()) {
      return NotServed(Named(run_id, version) + " is not in an evaluation slot");
    }
    slot_id = found->slot_id;
    digest = found->digest;
  } else {
    TITAN_RETURN_IF_ERROR(CheckServed(run_id, *run, version));
    const Version& entry = run->versions.at(version);
    slot_id = entry.slot_id;
    digest = entry.digest;
  }
  const Slot& slot = slots_.at(slot_id);
  LeaseGrant lease;
  lease.lease_id = NextNumber();
  lease.host = slot.host;
  lease.slot_id = slot_id;
  lease.grant = slot.grant;
  lease.epoch = slot.epoch;
  lease.digest = digest;
  lease.manifest = run->record.manifest;
  lease.ttl_ms = lease_ttl_ms_;
  leases_[lease.lease_id] = {.holder = holder,
                             .run_id = run_id,
                             .version = version,
                             .slot_id = slot_id,
                             .grant = lease.grant,
                             .since_ms = now_ms,
                             .ttl_ms = lease.ttl_ms};
  return lease;
}

StatusOr<StoreState::LeaseGrant> StoreState::HoldForCopy(const std::string& what,
                                                         const std::string& run_id,
                                                         uint64_t version, int64_t now_ms) {
  TITAN_ASSIGN_OR_RETURN(LeaseGrant lease, GrantLease(what, run_id, version, false, now_ms));
  LeaseState& held = leases_.at(lease.lease_id);
  held.mapped = true;
  held.copy = true;
  return lease;
}

StatusOr<StoreState::LeaseGrant> StoreState::AcquireLease(const std::string& holder,
                                                          const std::string& run_id,
                                                          uint64_t version, bool evaluation,
                                                          int64_t now_ms, const LeaseTerms& terms) {
  TITAN_ASSIGN_OR_RETURN(LeaseGrant lease, GrantLease(holder, run_id, version, evaluation, now_ms));
  if (terms.remote && lease.host != terms.reader_host) {
    const uint64_t seconds = 1 + lease.manifest->slot_bytes / kSlowestLinkBytesPerSecond;
    lease.ttl_ms += static_cast<int64_t>(seconds) * 1000;
    leases_.at(lease.lease_id).ttl_ms = lease.ttl_ms;
  }
  Command(lease.host, AllowLease{.lease_id = lease.lease_id,
                                 .slot_id = lease.slot_id,
                                 .grant = lease.grant,
                                 .epoch = lease.epoch,
                                 .token = terms.token,
                                 .holder = holder,
                                 .ttl_ms = lease.ttl_ms});
  return lease;
}

bool StoreState::LeaseMapped(uint64_t lease_id, int64_t now_ms) {
  const auto found = leases_.find(lease_id);
  if (found == leases_.end()) return false;
  found->second.mapped = true;
  found->second.since_ms = now_ms;
  return true;
}

bool StoreState::ReleaseLease(uint64_t lease_id) {
  const auto found = leases_.find(lease_id);
  if (found == leases_.end()) return false;
  const LeaseState lease = found->second;
  leases_.erase(found);
  Command(slots_.at(lease.slot_id).host, EndLease{lease_id});
  Run& run = runs_.at(lease.run_id);
  const auto entry = run.versions.find(lease.version);
  if (entry != run.versions.end() && entry->second.state == VersionState::kRetired &&
      entry->second.slot_id == lease.slot_id && !IsLeased(lease.slot_id)) {
    SetState(entry->second, VersionState::kFree);
    ReleaseSlot(run, entry->second);
  }
  DropUnusedEvaluations(run);
  return true;
}

void StoreState::ExpireLeases(int64_t now_ms) {
  std::vector<uint64_t> expired;
  for (const auto& [lease_id, lease] : leases_) {
    if (!lease.mapped && now_ms - lease.since_ms >= lease.ttl_ms) expired.push_back(lease_id);
  }
  for (const uint64_t lease_id : expired) ReleaseLease(lease_id);
  std::vector<std::pair<std::string, uint64_t>> overdue;
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.epoch == 0 || !slot.version.has_value()) continue;
    const Run& run = runs_.at(slot.run_id);
    // The ring does not want its own slots before it is full.
    if (slot.epoch == run.record.trainer_epoch) continue;
    if (IsOverdue(run.versions.at(*slot.version), now_ms)) {
      overdue.emplace_back(slot.run_id, *slot.version);
    }
  }
  for (const auto& [run_id, number] : overdue) {
    Run& run = runs_.at(run_id);
    (void)FenceHolders(run, number, run.versions.at(number));
  }
}

std::optional<std::string> StoreState::HostOf(const std::string& run_id, uint64_t version) const {
  const StatusOr<const Run*> run = FindRun(run_id);
  if (!run.ok() || !CheckServed(run_id, **run, version).ok()) return std::nullopt;
  return slots_.at((*run)->versions.at(version).slot_id).host;
}

StatusOr<std::string> StoreState::FenceReaders(const std::string& run_id, uint64_t version) {
  TITAN_ASSIGN_OR_RETURN(Run * run, FindRun(run_id));
  const auto found = run->versions.find(version);
  if (found == run->versions.end() || (found->second.state != VersionState::kCommitted &&
                                       found->second.state != VersionState::kRetired)) {
    return FailedPrecondition(Named(run_id, version) + " has no readers");
  }
  Version& entry = found->second;
  const std::string host = slots_.at(entry.slot_id).host;
  EndLeasesOf(entry.slot_id);
  RaiseGrant(entry.slot_id, version, entry.digest);
  if (entry.state == VersionState::kRetired) {
    SetState(entry, VersionState::kFree);
    ReleaseSlot(*run, entry);
  }
  return host;
}

// -------------------------------------------------------------------------------------- operators

std::optional<uint64_t> StoreState::NewestCommitted(const std::string& run_id) const {
  const auto run = runs_.find(run_id);
  if (run == runs_.end()) return std::nullopt;
  const auto& versions = run->second.versions;
  for (auto it = versions.rbegin(); it != versions.rend(); ++it) {
    if (it->second.state == VersionState::kCommitted) return it->first;
  }
  return std::nullopt;
}

VersionInfo StoreState::InfoOf(const std::string& run_id, uint64_t number,
                               const Version& version) const {
  VersionInfo info;
  info.version = number;
  info.state = version.state;
  info.record = version.record;
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.run_id == run_id && lease.version == number) info.holders.push_back(lease.holder);
  }
  // A holder may have several leases.
  std::sort(info.holders.begin(), info.holders.end());
  info.holders.erase(std::unique(info.holders.begin(), info.holders.end()), info.holders.end());
  return info;
}

StatusOr<std::vector<VersionInfo>> StoreState::ListVersions(const std::string& run_id,
                                                            uint64_t from_version,
                                                            size_t max_versions) const {
  TITAN_ASSIGN_OR_RETURN(const Run* run, FindRun(run_id));
  std::vector<VersionInfo> list;
  for (auto it = run->versions.lower_bound(from_version);
       it != run->versions.end() && list.size() < max_versions; ++it) {
    list.push_back(InfoOf(run_id, it->first, it->second));
  }
  return list;
}

StatusOr<StoreState::Changes> StoreState::ChangesSince(const std::string& run_id, uint64_t cursor,
                                                       uint64_t from_version,
                                                       size_t max_versions) const {
  TITAN_ASSIGN_OR_RETURN(const Run* run, FindRun(run_id));
  std::map<uint64_t, uint64_t> by_change;  // to the version's number
  for (auto it = run->versions.lower_bound(from_version); it != run->versions.end(); ++it) {
    const Version& version = it->second;
    const bool told = version.state == VersionState::kCommitted ||
                      version.state == VersionState::kRetired ||
                      version.state == VersionState::kFree || version.state == VersionState::kLost;
    if (told && version.changed > cursor) by_change[version.changed] = it->first;
  }
  Changes changes;
  changes.cursor = cursor;
  for (const auto& [change, number] : by_change) {
    if (changes.versions.size() == max_versions) return changes;
    changes.versions.push_back(InfoOf(run_id, number, run->versions.at(number)));
    changes.cursor = change;
  }
  changes.ended = run->record.ended;
  return changes;
}

SlotCounts StoreState::CountSlots() const {
  SlotCounts counts;
  for (const auto& [slot_id, slot] : slots_) {
    if (!slot.made) {
      ++counts.being_made;
    } else if (slot.epoch == 0) {
      ++counts.evaluation;
    } else if (!slot.version.has_value()) {
      ++counts.free;
    } else {
      switch (runs_.at(slot.run_id).versions.at(*slot.version).state) {
        case VersionState::kOpen:
          ++counts.open;
          break;
        case VersionState::kSealed:
          ++counts.sealed;
          break;
        case VersionState::kRetired:
          ++counts.retired;
          break;
        default:
          ++counts.committed;
      }
    }
  }
  return counts;
}

StoreState::SlotBytes StoreState::CountBytes(const std::string& host) const {
  SlotBytes bytes;
  for (const auto& [slot_id, slot] : slots_) {
    if (!host.empty() && slot.host != host) continue;
    (slot.made ? bytes.made : bytes.being_made) +=
        runs_.at(slot.run_id).record.manifest->slot_bytes;
  }
  return bytes;
}

StatusOr<std::optional<RunRecord>> StoreState::PlanEndRun(const std::string& run_id,
                                                          uint64_t epoch) const {
  TITAN_ASSIGN_OR_RETURN(const Run* run, FindRun(run_id));
  if (epoch > run->record.trainer_epoch) {
    return InvalidArgument("epoch: " + std::to_string(epoch) + " was never issued for run " +
                           run_id);
  }
  if (epoch != 0 && epoch < run->record.trainer_epoch) {
    return Superseded("epoch " + std::to_string(epoch) + " of run " + run_id +
                      " is superseded by epoch " + std::to_string(run->record.trainer_epoch));
  }
  if (run->record.ended) return std::optional<RunRecord>();
  RunRecord record = run->record;
  record.ended = true;
  return std::optional<RunRecord>(std::move(record));
}

void StoreState::ApplyEndRun(const std::string& run_id) {
  Run& run = runs_.at(run_id);
  run.writer_alive = false;
  AbortInProgress(run);
  run.record.ended = true;
  effects_.versions_changed = true;
  for (auto& [number, version] : run.versions) {
    if (version.state == VersionState::kCommitted || version.state == VersionState::kRetired) {
      SetState(version, VersionState::kFree);
      ReleaseSlot(run, version);
    }
  }
  run.evaluations.clear();
  std::vector<uint64_t> rest;
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.run_id == run_id) rest.push_back(slot_id);
  }
  for (const uint64_t slot_id : rest) RemoveSlot(slot_id);
}

}  // namespace titan::weightstore
