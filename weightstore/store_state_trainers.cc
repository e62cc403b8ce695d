// SPDX-License-Identifier: Apache-2.0
// Trainers and the slots that are made for them. Versions: store_state.cc.
#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "weightstore/store_state.h"
#include "weightstore/store_state_errors.h"

namespace titan::weightstore {

// --------------------------------------------------------------------------------------- trainers

namespace {

// The first field of two manifests that differs, with what a contract is there and here.
std::string DifferingField(const Manifest& recorded, const Manifest& given) {
  if (recorded.model_config_json != given.model_config_json) return "model_config_json";
  if (recorded.numerics_mode != given.numerics_mode) return "numerics_mode";
  const auto contract = [&](const char* name, const std::string& there, const std::string& here) {
    const std::string item = DifferingItem(recorded.contract_items, given.contract_items);
    return std::string(name) + " (" + (item.empty() ? there + " there, " + here + " here" : item) +
           ")";
  };
  if (recorded.contract_forward != given.contract_forward) {
    return contract("contract_forward", recorded.contract_forward, given.contract_forward);
  }
  if (recorded.contract_training != given.contract_training) {
    return contract("contract_training", recorded.contract_training, given.contract_training);
  }
  if (recorded.bundle != given.bundle) return "bundle";
  return recorded.slot_bytes != given.slot_bytes ? "slot_bytes" : "tensors";
}

}  // namespace

StatusOr<StoreState::RegistrationPlan> StoreState::PlanRegistration(
    const std::string& run_id, const Manifest& manifest, uint32_t max_age, const std::string& host,
    uint32_t evaluation_slots) const {
  TITAN_RETURN_IF_ERROR(CheckRunId(run_id));
  TITAN_RETURN_IF_ERROR(Validate(manifest));
  if (max_age > 64) return InvalidArgument("max_age: must be at most 64");
  if (evaluation_slots < 1 || evaluation_slots > kMaxEvaluationSlots) {
    return InvalidArgument("evaluation_slots: must be 1 to " + std::to_string(kMaxEvaluationSlots));
  }
  RegistrationPlan plan;
  plan.host = host;
  plan.ring_slots = max_age + kSparesOfRing;
  plan.evaluation_slots = evaluation_slots;
  plan.slot_bytes = manifest.slot_bytes;
  plan.record.trainer_epoch = 1;
  plan.record.max_age = max_age;
  plan.record.evaluation_slots = evaluation_slots;
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) {
    plan.record.manifest = std::make_shared<const Manifest>(manifest);
    return plan;
  }
  const Run& run = found->second;
  if (run.record.ended) return FailedPrecondition("run " + run_id + " has ended");
  Manifest given = manifest;
  given.contract_items =
      run.record.manifest->contract_items;  // the digests say whether they differ
  if (*run.record.manifest != given) {
    return InvalidArgument("manifest." + DifferingField(*run.record.manifest, manifest) +
                           ": differs from that of the manifest run " + run_id +
                           " is recorded with; another model or contract needs another run");
  }
  if (run.record.max_age != max_age) {
    return InvalidArgument("max_age: run " + run_id + " is recorded with " +
                           std::to_string(run.record.max_age) + ", not " + std::to_string(max_age));
  }
  if (run.record.evaluation_slots != evaluation_slots) {
    return InvalidArgument("evaluation_slots: run " + run_id + " is recorded with " +
                           std::to_string(run.record.evaluation_slots) + ", not " +
                           std::to_string(evaluation_slots));
  }
  plan.record.manifest = run.record.manifest;
  plan.record.trainer_epoch = run.record.trainer_epoch + 1;
  for (const Evaluation& evaluation : run.evaluations) {
    if (IsIdleElsewhere(evaluation, host)) {
      ++plan.num_dropped;
    } else {
      --plan.evaluation_slots;
    }
  }
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.run_id != run_id || slot.epoch == 0) continue;
    const bool serves = slot.version.has_value() &&
                        run.in_progress != slot.version;  // COMMITTED, RETIRED or being adopted
    const bool unneeded = serves && slot.made && !IsLeased(slot_id) &&
                          *slot.version < OldestNeeded(run, run.num_records);
    if (serves && !unneeded) continue;
    ++plan.num_dropped;
    if (slot.host == host) plan.dropped_bytes += plan.slot_bytes;
  }
  return plan;
}

uint64_t StoreState::AddSlot(const std::string& run_id, uint64_t epoch, const std::string& host,
                             uint32_t order) {
  const uint64_t slot_id = NextNumber();
  slots_[slot_id] = {.run_id = run_id, .host = host, .epoch = epoch};
  Command(host, MakeSlot{.slot_id = slot_id,
                         .num_bytes = runs_.at(run_id).record.manifest->slot_bytes,
                         .run_id = run_id,
                         .epoch = epoch,
                         .order = order});
  return slot_id;
}

void StoreState::ApplyRegistration(const std::string& run_id, const RegistrationPlan& plan,
                                   int64_t now_ms) {
  Run& run = runs_[run_id];
  run.writer_alive = false;  // what is released from here on is dropped
  AbortInProgress(run);
  run.record = plan.record;
  run.newest_opened = 0;
  run.slots_failed = OkStatus();
  std::vector<uint64_t> idle;
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.run_id == run_id && slot.epoch != 0 && !slot.version.has_value())
      idle.push_back(slot_id);
  }
  for (const uint64_t slot_id : idle) RemoveSlot(slot_id);
  RetireUnneeded(run, run.num_records, /*ring_is_full=*/true, now_ms);
  run.writer_alive = true;
  for (uint32_t i = 0; i < plan.ring_slots; ++i) {
    AddSlot(run_id, plan.record.trainer_epoch, plan.host, i);
  }
  std::erase_if(run.evaluations, [&](const Evaluation& evaluation) {
    const bool idle = IsIdleElsewhere(evaluation, plan.host);
    if (idle) RemoveSlot(evaluation.slot_id);
    return idle;
  });
  while (run.evaluations.size() < run.record.evaluation_slots) {
    const uint32_t order = plan.ring_slots + static_cast<uint32_t>(run.evaluations.size());
    run.evaluations.push_back({.slot_id = AddSlot(run_id, /*epoch=*/0, plan.host, order)});
  }
}

bool StoreState::IsBeingMade(uint64_t slot_id) const {
  const auto found = slots_.find(slot_id);
  return found != slots_.end() && !found->second.made;
}

bool StoreState::SlotMade(uint64_t slot_id) {
  if (!IsBeingMade(slot_id)) return false;
  Slot& slot = slots_.at(slot_id);
  slot.made = true;
  effects_.slots_changed = true;
  if (slot.epoch == kNoTrainer) FinishAdoption(slot_id);
  return true;
}

void StoreState::SlotNotMade(uint64_t slot_id, const Status& why) {
  if (!IsBeingMade(slot_id)) return;
  if (slots_.at(slot_id).epoch == kNoTrainer) return RemoveSlot(slot_id);
  const std::string run_id = slots_.at(slot_id).run_id;
  Run& run = runs_.at(run_id);
  run.slots_failed = Annotate(why, "a slot of run " + run_id + " cannot be made");
  std::erase_if(run.evaluations,
                [&](const Evaluation& evaluation) { return IsBeingMade(evaluation.slot_id); });
  std::vector<uint64_t> unmade;
  for (const auto& [other, slot] : slots_) {
    if (slot.run_id == run_id && !slot.made && slot.epoch != kNoTrainer) unmade.push_back(other);
  }
  for (const uint64_t other : unmade) RemoveSlot(other);
}

Status StoreState::CheckTrainer(const std::string& run_id, uint64_t epoch) const {
  TITAN_ASSIGN_OR_RETURN(const Run* run, FindRun(run_id));
  return CheckEpoch(run_id, *run, epoch);
}

bool StoreState::GoesOn(const std::string& run_id) const {
  const auto run = runs_.find(run_id);
  return run != runs_.end() && !run->second.record.ended;
}

std::vector<std::string> StoreState::RunsThatGoOn() const {
  std::vector<std::string> runs;
  for (const auto& [run_id, run] : runs_) {
    if (!run.record.ended) runs.push_back(run_id);
  }
  return runs;
}

StatusOr<bool> StoreState::HasSlot(const std::string& run_id, uint64_t epoch) const {
  TITAN_RETURN_IF_ERROR(CheckTrainer(run_id, epoch));
  TITAN_RETURN_IF_ERROR(runs_.at(run_id).slots_failed);
  return std::any_of(slots_.begin(), slots_.end(), [&](const auto& entry) {
    return entry.second.run_id == run_id && entry.second.epoch == epoch && entry.second.made;
  });
}

uint32_t StoreState::NumBeingMade(const std::string& run_id, const Run& run) const {
  return static_cast<uint32_t>(std::count_if(slots_.begin(), slots_.end(), [&](const auto& entry) {
    return entry.second.run_id == run_id && entry.second.epoch == run.record.trainer_epoch &&
           !entry.second.made;
  }));
}

void StoreState::AbandonWriter(const std::string& run_id, uint64_t epoch) {
  const auto found = runs_.find(run_id);
  if (found == runs_.end() || found->second.record.trainer_epoch != epoch) return;
  Run& run = found->second;
  run.writer_alive = false;
  AbortInProgress(run);
  std::vector<uint64_t> idle;
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.run_id == run_id && slot.epoch == epoch && !slot.version.has_value()) {
      idle.push_back(slot_id);
    }
  }
  for (const uint64_t slot_id : idle) RemoveSlot(slot_id);
}

}  // namespace titan::weightstore
