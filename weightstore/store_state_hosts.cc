// SPDX-License-Identifier: Apache-2.0
// Hosts that come and go. Trainers: store_state_trainers.cc.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/check.h"
#include "weightstore/store_state.h"
#include "weightstore/store_state_errors.h"

namespace titan::weightstore {

void StoreState::AttachHost(const std::string& host, const HostReport& report, int64_t now_ms) {
  std::map<uint64_t, Slot> before;
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.host == host) before.emplace(slot_id, slot);
  }
  const std::map<uint64_t, LeaseState> leases_before = leases_;
  std::erase_if(leases_, [&](const auto& entry) { return before.contains(entry.second.slot_id); });
  for (const auto& [slot_id, slot] : before) slots_.erase(slot_id);
  for (const SlotReport& slot : report.slots) {
    const bool writer_gone = std::any_of(
        report.gone_writers.begin(), report.gone_writers.end(),
        [&](const auto& one) { return one.run_id == slot.run_id && one.epoch == slot.epoch; });
    TakeSlot(host, slot, writer_gone);
  }
  ForgetSlots(host, before);
  std::map<uint64_t, uint64_t> version_in;  // by slot
  for (const SlotReport& slot : report.slots) version_in[slot.header.slot_id] = slot.header.version;
  for (const auto& [lease, mapped] : report.leases) {
    const auto slot = slots_.find(lease.slot_id);
    // A slot that does not hold its version any more got another grant number above.
    if (slot == slots_.end() || slot->second.host != host || slot->second.grant != lease.grant ||
        !slot->second.made || !version_in.contains(lease.slot_id) ||
        (slot->second.epoch != 0 && slot->second.version != version_in.at(lease.slot_id))) {
      Command(host, EndLease{lease.lease_id});
      continue;
    }
    LeaseState& taken = leases_[lease.lease_id];
    taken.holder = lease.holder;
    taken.run_id = slot->second.run_id;
    taken.version = version_in.at(lease.slot_id);
    taken.slot_id = lease.slot_id;
    taken.grant = lease.grant;
    taken.mapped = mapped;
    taken.since_ms = now_ms;
    taken.ttl_ms = lease.ttl_ms;
    const auto known = leases_before.find(lease.lease_id);
    if (known != leases_before.end()) taken.since_ms = known->second.since_ms;
  }
  // The copy under way holds its source, which the host does not know of.
  for (const auto& [lease_id, lease] : leases_before) {
    if (lease.copy && slots_.contains(lease.slot_id)) {
      leases_.emplace(lease_id, lease);
    }
  }
  CompleteRing(host);
  for (auto& [run_id, run] : runs_) DropUnusedEvaluations(run);
  effects_.slots_changed = true;
}

void StoreState::TakeSlot(const std::string& host, const SlotReport& report, bool writer_gone) {
  const uint64_t slot_id = report.header.slot_id;
  if (slots_.contains(slot_id)) return;  // of another host: a name that was used twice
  Slot& slot = slots_[slot_id];
  slot = {.run_id = report.run_id,
          .host = host,
          .epoch = report.epoch,
          .grant = report.header.grant,
          .made = report.made};
  const auto found = runs_.find(report.run_id);
  if (found == runs_.end() || (found->second.record.ended && report.epoch != 0) ||
      found->second.record.manifest->slot_bytes != report.num_bytes) {
    RemoveSlot(slot_id);
    return;
  }
  Run& run = found->second;
  if (report.epoch == 0) {
    if (!TakeEvaluationSlot(run, report)) RemoveSlot(slot_id);
    return;
  }
  const bool current = report.epoch == run.record.trainer_epoch;
  if (current) run.writer_alive = !writer_gone;
  if (TakeVersion(run, report)) return;
  if (!current || writer_gone) {
    RemoveSlot(slot_id);
  } else if (report.made) {
    RaiseGrant(slot_id, 0, {});  // free: who has it open or mapped has no business there
  }
}

bool StoreState::TakeEvaluationSlot(Run& run, const SlotReport& report) {
  const SlotHeaderFields& header = report.header;
  auto evaluation = std::find_if(run.evaluations.begin(), run.evaluations.end(),
                                 [&](const auto& one) { return one.slot_id == header.slot_id; });
  if (evaluation == run.evaluations.end()) {
    if (run.evaluations.size() >= run.record.evaluation_slots) return false;
    run.evaluations.push_back({.slot_id = header.slot_id});
    evaluation = std::prev(run.evaluations.end());
  }
  if (evaluation->state == Evaluation::State::kFilling) return true;  // who fills it finds out
  const auto version = run.versions.find(header.version);
  const bool holds = report.made && header.digest != Hash128{} && version != run.versions.end() &&
                     version->second.record.has_value() &&
                     version->second.record->digest == header.digest;
  const bool same =
      evaluation->state == Evaluation::State::kFilled && evaluation->version == header.version;
  evaluation->pinned = holds && same && evaluation->pinned;
  evaluation->state = holds ? Evaluation::State::kFilled : Evaluation::State::kEmpty;
  evaluation->version = header.version;
  evaluation->digest = header.digest;
  return true;
}

bool StoreState::TakeVersion(Run& run, const SlotReport& report) {
  if (!report.made) return false;
  const SlotHeaderFields& header = report.header;
  const bool current = report.epoch == run.record.trainer_epoch && run.writer_alive;
  const bool verified = header.digest != Hash128{} && !report.open_for_writing;
  auto found = run.versions.find(header.version);
  const bool recorded = found != run.versions.end() && found->second.record.has_value();
  if (recorded && verified && found->second.record->digest == header.digest) {
    Version& version = found->second;
    if (version.slot_id != 0 && version.slot_id != header.slot_id &&
        slots_.contains(version.slot_id)) {
      return false;  // another slot holds it
    }
    if (run.in_progress == header.version) run.in_progress.reset();
    const bool kept =
        version.slot_id == header.slot_id &&
        (version.state == VersionState::kCommitted || version.state == VersionState::kRetired);
    version.slot_id = header.slot_id;
    version.digest = header.digest;
    if (!kept) SetState(version, VersionState::kCommitted);
    if (current) run.newest_opened = std::max(run.newest_opened, header.version);
    slots_.at(header.slot_id).version = header.version;
    return true;
  }
  // What is written or waits for its commit; of a version that has a record only if it is LOST.
  if (!current || !(verified || report.open_for_writing)) return false;
  if (!recorded && header.version != run.num_records) return false;
  if (run.in_progress.has_value() && run.in_progress != header.version) return false;
  Version& version = run.versions[header.version];
  const bool same = run.in_progress == header.version && version.slot_id == header.slot_id;
  if (!same && version.slot_id != 0 && slots_.contains(version.slot_id)) return false;
  const VersionState state = verified ? VersionState::kSealed : VersionState::kOpen;
  if (!same) version.verifying = false;
  if (!same || version.state != state) SetState(version, state);
  version.slot_id = header.slot_id;
  version.digest = header.digest;
  run.in_progress = header.version;
  run.newest_opened = std::max(run.newest_opened, header.version);
  slots_.at(header.slot_id).version = header.version;
  return true;
}

void StoreState::ForgetSlots(const std::string& host, const std::map<uint64_t, Slot>& before) {
  for (auto& [run_id, run] : runs_) {
    for (auto& [number, version] : run.versions) {
      if (version.slot_id == 0) continue;
      // The slot may be there and hold another version than was thought: a command that did not
      // reach its host.
      const auto slot = slots_.find(version.slot_id);
      if (slot != slots_.end() && slot->second.run_id == run_id && slot->second.version == number) {
        continue;
      }
      version.slot_id = 0;
      version.verifying = false;
      SetState(version, version.record.has_value() ? VersionState::kLost : VersionState::kAborted);
      if (run.in_progress == number) run.in_progress.reset();
    }
    std::erase_if(run.evaluations, [&, &name = run_id](const auto& evaluation) {
      const auto slot = slots_.find(evaluation.slot_id);
      return slot == slots_.end() || slot->second.run_id != name || slot->second.epoch != 0;
    });
    const bool had_ring = std::any_of(before.begin(), before.end(), [&](const auto& entry) {
      return entry.second.run_id == run_id && entry.second.epoch == run.record.trainer_epoch;
    });
    const bool has_ring = std::any_of(slots_.begin(), slots_.end(), [&](const auto& entry) {
      return entry.second.run_id == run_id && entry.second.host == host &&
             entry.second.epoch == run.record.trainer_epoch;
    });
    if (had_ring && !has_ring) run.writer_alive = false;
  }
}

// Slots that were to be made when the host was lost sight of.
void StoreState::CompleteRing(const std::string& host) {
  for (auto& [run_id, run] : runs_) {
    if (!run.writer_alive || !run.slots_failed.ok()) continue;
    uint32_t ring = 0;
    for (const auto& [slot_id, slot] : slots_) {
      if (slot.run_id != run_id || slot.epoch != run.record.trainer_epoch) continue;
      if (slot.host == host) ++ring;
    }
    if (ring == 0) continue;
    for (; ring < run.record.max_age + kSparesOfRing; ++ring) {
      AddSlot(run_id, run.record.trainer_epoch, host, ring);
    }
    while (run.evaluations.size() < run.record.evaluation_slots) {
      run.evaluations.push_back({.slot_id = AddSlot(run_id, /*epoch=*/0, host, ring++)});
    }
  }
}

}  // namespace titan::weightstore
