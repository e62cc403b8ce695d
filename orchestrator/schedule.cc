// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/schedule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "orchestrator/advantage.h"

namespace titan::orchestrator {

std::string PlanDigest(const std::vector<PlannedSample>& samples) {
  std::vector<uint64_t> words;
  for (const PlannedSample& sample : samples) {
    if (!sample.trained) continue;
    words.push_back(sample.sample.value);
    words.push_back(std::bit_cast<uint64_t>(sample.advantage));
  }
  return ToHex(Hash64(words.data(), words.size() * sizeof(uint64_t)));
}

std::vector<GroupId> ParityGroups(const JobSpec& spec, Step step) {
  if (spec.schedule.max_age == 0) return {};
  const uint32_t num_slots = spec.schedule.groups_per_step;
  std::vector<std::pair<uint64_t, GroupId>> ranked;
  for (uint32_t slot = 0; slot < num_slots; ++slot) {
    const GroupId id = MakeGroupId(step, slot, 0);
    ranked.emplace_back(HashFields(spec.seed, id.value), id);
  }
  std::sort(ranked.begin(), ranked.end());
  const auto num = static_cast<size_t>(std::ceil(spec.parity.share * num_slots));
  ranked.resize(std::min<size_t>(num, num_slots));
  std::vector<GroupId> chosen;
  for (const auto& [hash, id] : ranked) chosen.push_back(id);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

LogicalSchedule::LogicalSchedule(std::shared_ptr<const JobSpec> spec, DataOrder order)
    : spec_(std::move(spec)), order_(std::move(order)) {
  const auto kind = AdvantageKindOf(spec_->training.advantage);
  TITAN_CHECK(kind.has_value());  // CheckJobSpec refused other names
  advantage_ = *kind;
}

StatusOr<const Group*> LogicalSchedule::Admit(OpenStep& step, uint32_t slot, uint32_t candidate) {
  const uint32_t num_slots = spec_->schedule.groups_per_step;
  Group group;
  group.id = MakeGroupId(step.step, slot, candidate);
  group.data_row =
      candidate == 0 ? order_.RowAt(step.step * num_slots + slot) : order_.CandidateRow(group.id);
  group.version = step.version;
  for (uint32_t i = 0; i < spec_->rollout.samples_per_group; ++i) {
    SampleRecord record;
    record.id = MakeSampleId(group.id, i);
    if (!places_.emplace(record.id, Place{group.id, i}).second) {
      return Internal("sample id " + ToHex(record.id.value) +
                      " belongs to two samples; change rollout.samples_per_group");
    }
    group.samples.push_back(std::move(record));
  }
  const auto [at, fresh] = step.groups.emplace(group.id, std::move(group));
  TITAN_CHECK(fresh);  // I1: a group is admitted once
  return &at->second;
}

StatusOr<std::vector<const Group*>> LogicalSchedule::Open(PolicyVersion committed) {
  std::vector<const Group*> admitted;
  while (next_to_open_ < spec_->schedule.steps && spec_->VersionOf(next_to_open_) <= committed) {
    OpenStep step;
    step.step = next_to_open_++;
    step.version = spec_->VersionOf(step.step);
    const uint32_t num_slots = spec_->schedule.groups_per_step;
    step.taken.resize(num_slots);
    step.settled.resize(num_slots, false);
    OpenStep& opened = steps_.emplace(step.step, std::move(step)).first->second;
    for (uint32_t slot = 0; slot < num_slots; ++slot) {
      TITAN_ASSIGN_OR_RETURN(const Group* group, Admit(opened, slot, 0));
      admitted.push_back(group);
    }
  }
  return admitted;
}

OpenStep* LogicalSchedule::FindStep(Step step) {
  const auto found = steps_.find(step);
  return found == steps_.end() ? nullptr : &found->second;
}

const Group* LogicalSchedule::FindGroup(GroupId id) const {
  const auto step = steps_.find(StepOf(id));
  if (step == steps_.end()) return nullptr;
  const auto group = step->second.groups.find(id);
  return group == step->second.groups.end() ? nullptr : &group->second;
}

std::optional<LogicalSchedule::Place> LogicalSchedule::Find(SampleId sample) const {
  const auto found = places_.find(sample);
  if (found == places_.end()) return std::nullopt;
  return found->second;
}

bool LogicalSchedule::AddReply(GroupId id, uint32_t sample_index, SampleRecord record) {
  auto* group = const_cast<Group*>(FindGroup(id));
  if (group == nullptr || sample_index >= group->samples.size()) return false;
  SampleRecord& sample = group->samples[sample_index];
  if (sample.reply != nullptr) return false;
  record.id = sample.id;
  sample = std::move(record);
  return true;
}

StatusOr<LogicalSchedule::ScoreEffect> LogicalSchedule::AddScore(GroupId id, uint32_t sample_index,
                                                                 double value) {
  ScoreEffect effect;
  auto* group = const_cast<Group*>(FindGroup(id));
  if (group == nullptr || sample_index >= group->samples.size()) return effect;
  SampleRecord& sample = group->samples[sample_index];
  if (sample.scored || sample.reply == nullptr) return effect;
  sample.scored = true;
  sample.score = value;
  if (++group->num_scored < group->samples.size()) return effect;

  std::vector<double> rewards;
  for (const SampleRecord& s : group->samples) rewards.push_back(s.score);
  group->closed = true;
  group->trainable = !IsZeroVariance(rewards);
  effect.closed = group;
  OpenStep& step = *FindStep(StepOf(id));
  const uint32_t slot = SlotOf(id);
  TITAN_CHECK(!step.settled[slot]);
  if (group->trainable) {
    step.taken[slot] = id;
  } else {
    group->reason = "zero_variance";
    const uint32_t next = CandidateOf(id) + 1;
    if (spec_->Replaces() && next < spec_->schedule.max_candidates) {
      TITAN_ASSIGN_OR_RETURN(effect.admitted, Admit(step, slot, next));
      return effect;
    }
    effect.slot_empty = spec_->Replaces();
  }
  step.settled[slot] = true;
  ++step.num_settled;
  return effect;
}

StepPlan LogicalSchedule::Plan(Step t) {
  OpenStep* step = FindStep(t);
  TITAN_CHECK(step != nullptr && step->Complete());
  step->planned = true;
  StepPlan plan;
  plan.step = t;
  const std::vector<GroupId> parity = ParityGroups(*spec_, t);
  const bool on_policy = spec_->schedule.max_age == 0;
  const auto add = [&](const Group& group, uint32_t index, bool trained, bool compared) {
    TITAN_CHECK(group.version == spec_->VersionOf(t));  // I2: the age is exact
    std::vector<double> rewards;
    for (const SampleRecord& s : group.samples) rewards.push_back(s.score);
    const std::vector<double> advantages =
        GroupAdvantages(rewards, advantage_, spec_->training.advantage_epsilon);
    for (uint32_t i = 0; i < group.samples.size(); ++i) {
      const SampleRecord& s = group.samples[i];
      plan.samples.push_back({group.id, index, i, s.id, group.data_row, s.reply,
                              trained ? advantages[i] : 0.0, trained, compared});
      if (trained) plan.trained.push_back(s.id);
    }
  };
  for (const auto& taken : step->taken) {
    if (!taken.has_value()) continue;
    const bool compared = on_policy || std::binary_search(parity.begin(), parity.end(), *taken);
    add(step->groups.at(*taken), plan.num_groups_trained++, true, compared);
  }
  uint32_t only_compared = 0;
  for (const GroupId id : parity) {
    if (step->taken[SlotOf(id)] == id) continue;
    add(step->groups.at(id), only_compared++, false, true);
  }
  for (const auto& [id, group] : step->groups) plan.num_groups_untrainable += !group.trainable;
  plan.digest = PlanDigest(plan.samples);
  return plan;
}

void LogicalSchedule::Close(Step t) {
  const auto found = steps_.find(t);
  TITAN_CHECK(found != steps_.end());
  for (const auto& [id, group] : found->second.groups) {
    for (const SampleRecord& sample : group.samples) places_.erase(sample.id);
  }
  steps_.erase(found);
}

std::vector<PolicyVersion> LogicalSchedule::VersionsInUse() const {
  std::set<PolicyVersion> versions;
  for (const auto& [t, step] : steps_) {
    if (!step.Complete()) versions.insert(step.version);
  }
  return {versions.begin(), versions.end()};
}

std::vector<GroupId> LogicalSchedule::UnfinishedGroups() const {
  std::vector<GroupId> ids;
  for (const auto& [t, step] : steps_) {
    for (const auto& [id, group] : step.groups) {
      if (!group.closed || group.trainable) ids.push_back(id);
    }
  }
  return ids;
}

}  // namespace titan::orchestrator
