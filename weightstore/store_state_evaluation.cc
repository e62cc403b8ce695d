// SPDX-License-Identifier: Apache-2.0
// Slots that hold a version for evaluation, whatever becomes of the version.
#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "weightstore/store_state.h"
#include "weightstore/store_state_errors.h"

namespace titan::weightstore {

void StoreState::AddEvaluationSlot(const std::string& run_id, const std::string& host) {
  Run& run = runs_.at(run_id);
  if (run.evaluations.size() >= run.record.evaluation_slots) return;
  run.evaluations.push_back({.slot_id = AddSlot(run_id, /*epoch=*/0, host, /*order=*/0)});
}

StoreState::Evaluation* StoreState::FindFreeEvaluation(Run& run,
                                                       const std::optional<std::string>& host) {
  Evaluation* free = nullptr;
  for (Evaluation& evaluation : run.evaluations) {
    if (host.has_value() && slots_.at(evaluation.slot_id).host != *host) continue;
    if (evaluation.state == Evaluation::State::kFilling || evaluation.pinned ||
        IsBeingMade(evaluation.slot_id) || IsLeased(evaluation.slot_id)) {
      continue;
    }
    if (evaluation.state == Evaluation::State::kEmpty) return &evaluation;
    if (free == nullptr) free = &evaluation;
  }
  return free;
}

std::string StoreState::DescribeEvaluations(const Run& run) const {
  std::string text;
  for (const Evaluation& evaluation : run.evaluations) {
    text += (text.empty() ? "version " : "; version ") + std::to_string(evaluation.version);
    if (evaluation.state == Evaluation::State::kFilling) {
      text += " is being brought in";
      continue;
    }
    if (evaluation.pinned) text += " is pinned";
    for (const auto& [lease_id, lease] : leases_) {
      if (lease.slot_id != evaluation.slot_id) continue;
      text += " (lease " + std::to_string(lease_id) + " of " + lease.holder + ")";
    }
  }
  return text;
}

StatusOr<StoreState::PinOutcome> StoreState::PlanPin(const std::string& run_id, uint64_t version,
                                                     bool on_disk, bool pin, int64_t now_ms) {
  TITAN_ASSIGN_OR_RETURN(Run * run, FindRun(run_id));
  for (Evaluation& evaluation : run->evaluations) {
    if (evaluation.state == Evaluation::State::kEmpty || evaluation.version != version) continue;
    if (evaluation.state == Evaluation::State::kFilling) {
      return PinOutcome{.not_yet = true};
    }
    evaluation.pinned |= pin;
    return PinOutcome{.digest = evaluation.digest, .copy = std::nullopt};
  }
  const auto found = run->versions.find(version);
  const bool recorded = found != run->versions.end() && found->second.record.has_value();
  const bool from_disk = on_disk && recorded && found->second.state != VersionState::kCommitted;
  if (!from_disk) TITAN_RETURN_IF_ERROR(CheckServed(run_id, *run, version));
  // A copy stays on its host.
  std::optional<std::string> host;
  if (!from_disk) host = slots_.at(found->second.slot_id).host;
  Evaluation* evaluation = FindFreeEvaluation(*run, host);
  if (evaluation == nullptr) {
    for (const Evaluation& other : run->evaluations) {
      if (!IsBeingMade(other.slot_id)) continue;
      Command(slots_.at(other.slot_id).host, HurrySlots{});
      return PinOutcome{.not_yet = true};
    }
    if (run->evaluations.size() < run->record.evaluation_slots) {
      // Without a trainer nobody else waits for slots: who asks again tries anew.
      TITAN_RETURN_IF_ERROR(run->writer_alive ? run->slots_failed
                                              : std::exchange(run->slots_failed, OkStatus()));
      return PinOutcome{.slot_wanted = true, .wanted_on = host.value_or("")};
    }
    return EvaluationBusy("every evaluation slot of run " + run_id +
                          " is in use: " + DescribeEvaluations(*run));
  }
  PinPlan plan;
  plan.host = slots_.at(evaluation->slot_id).host;
  plan.from_disk = from_disk;
  plan.to_slot = evaluation->slot_id;
  if (from_disk) {
    plan.digest = found->second.record->digest;
  } else {
    TITAN_ASSIGN_OR_RETURN(const LeaseGrant source,
                           HoldForCopy("evaluation copy", run_id, version, now_ms));
    plan.from_slot = source.slot_id;
    plan.copy_lease = source.lease_id;
    plan.digest = source.digest;
  }
  evaluation->state = Evaluation::State::kFilling;
  evaluation->pinned = pin;
  evaluation->version = version;
  evaluation->digest = plan.digest;
  RaiseGrant(plan.to_slot, version, {});
  plan.grant = slots_.at(plan.to_slot).grant;
  return PinOutcome{.digest = plan.digest, .copy = plan};
}

Status StoreState::FinishPin(const std::string& run_id, uint64_t version, const PinPlan& plan,
                             bool good) {
  if (!plan.from_disk) ReleaseLease(plan.copy_lease);
  TITAN_ASSIGN_OR_RETURN(Run * run, FindRun(run_id));
  const auto evaluation =
      std::find_if(run->evaluations.begin(), run->evaluations.end(),
                   [&](const Evaluation& other) { return other.slot_id == plan.to_slot; });
  if (evaluation == run->evaluations.end() || evaluation->state != Evaluation::State::kFilling ||
      slots_.at(plan.to_slot).grant != plan.grant) {
    return Aborted("run " + run_id + " ended while version " + std::to_string(version) +
                   " was brought in for evaluation");
  }
  if (!good) {
    evaluation->state = Evaluation::State::kEmpty;
    evaluation->pinned = false;
    effects_.slots_changed = true;
    DropUnusedEvaluations(*run);
    return WithReason(DataLoss(Named(run_id, version) +
                               ": its copy for evaluation has another digest than was committed"),
                      kDigestMismatch);
  }
  evaluation->state = Evaluation::State::kFilled;
  effects_.slots_changed = true;  // who asked for the same version may look again
  Command(plan.host, WriteHeader{{plan.to_slot, version, plan.grant, plan.digest}});
  return OkStatus();
}

Status StoreState::Unpin(const std::string& run_id, uint64_t version) {
  TITAN_ASSIGN_OR_RETURN(Run * run, FindRun(run_id));
  for (Evaluation& evaluation : run->evaluations) {
    if (evaluation.version == version) evaluation.pinned = false;
  }
  DropUnusedEvaluations(*run);
  return OkStatus();  // a repeated request finds it done
}

bool StoreState::IsIdleElsewhere(const Evaluation& evaluation, const std::string& host) const {
  return slots_.at(evaluation.slot_id).host != host && !evaluation.pinned &&
         evaluation.state != Evaluation::State::kFilling && !IsLeased(evaluation.slot_id);
}

void StoreState::DropUnusedEvaluations(Run& run) {
  if (!run.record.ended) return;
  std::erase_if(run.evaluations, [&](const Evaluation& evaluation) {
    if (evaluation.state == Evaluation::State::kFilling || evaluation.pinned ||
        IsBeingMade(evaluation.slot_id) || IsLeased(evaluation.slot_id)) {
      return false;
    }
    RemoveSlot(evaluation.slot_id);
    return true;
  });
}

}  // namespace titan::weightstore
