// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/rollouts.h"

#include <map>
#include <utility>

#include "core/text/tokenizer.h"
#include "orchestrator/fleet.h"

namespace titan::orchestrator {
namespace {

constexpr uint32_t kDefaultGroups = 1000;

v1::RolloutSample ToSample(const SampleGenerated& fact, const RolloutQuery& query,
                           const PreparedData* data) {
  v1::RolloutSample out;
  out.set_sample_index(fact.sample_index);
  out.set_sample_id(fact.sample.value);
  out.set_attempt(fact.attempt);
  out.set_worker_id(fact.worker_id);
  out.set_finish_reason(static_cast<type::v1::FinishReason>(fact.finish));
  if (fact.reply == nullptr) return out;
  const Reply& reply = *fact.reply;
  out.set_num_tokens(static_cast<uint32_t>(reply.token_ids.size()));
  if (data != nullptr) out.set_text(data->renderer->Decode(reply.token_ids));
  auto& span = *out.add_spans();
  span.set_version(fact.version);
  span.set_num_tokens(out.num_tokens());
  if (!query.with_tokens) return out;
  out.mutable_token_ids()->Add(reply.token_ids.begin(), reply.token_ids.end());
  out.mutable_logprobs()->Add(reply.logprobs.begin(), reply.logprobs.end());
  if (data == nullptr) return out;
  const text::Tokenizer& tokenizer = data->renderer->tokenizer();
  for (const TokenId id : reply.token_ids) {
    out.add_token_texts(tokenizer.IsSpecial(id) ? std::string(tokenizer.TokenText(id))
                                                : text::RepairUtf8(tokenizer.TokenBytes(id)));
  }
  return out;
}

void AddScore(const SampleScored& fact, v1::RolloutSample* out) {
  out->set_scored(true);
  out->set_reward(fact.value);
  for (const auto& [name, value] : fact.components)
    (*out->mutable_reward_components())[name] = value;
  out->set_grader(fact.grader);
  out->set_grader_version(fact.grader_version);
  out->set_model_fault(fact.model_fault);
}

}  // namespace

RolloutQuery FromProto(const v1::ListRolloutsRequest& request) {
  RolloutQuery query;
  if (request.has_step()) query.step = request.step();
  for (const uint64_t id : request.group_ids()) query.groups.insert({id});
  query.max_groups = request.max_groups() == 0 ? kDefaultGroups : request.max_groups();
  query.with_tokens = !request.without_tokens();
  return query;
}

std::vector<v1::ListRolloutsResponse> CollectRollouts(const std::vector<Fact>& facts,
                                                      const RolloutQuery& query,
                                                      const PreparedData* data) {
  struct Group {
    v1::ListRolloutsResponse head;
    std::map<uint32_t, v1::RolloutSample> samples;
  };
  std::map<GroupId, Group> groups;
  std::map<SampleId, std::pair<GroupId, uint32_t>> places;
  for (const Fact& fact : facts) {
    if (const auto* f = std::get_if<GroupAdmitted>(&fact.body)) {
      if (IsEvaluation(f->group) || !query.Wants(f->group)) continue;
      v1::ListRolloutsResponse& head = groups[f->group].head;
      head.set_group_id(f->group.value);
      head.set_step(StepOf(f->group));
      head.set_slot(SlotOf(f->group));
      head.set_candidate(CandidateOf(f->group));
      head.set_version(f->version);
      if (data == nullptr || f->data_row >= data->dataset->rows.size()) continue;
      const DataRow& row = data->dataset->rows[f->data_row];
      head.set_data_id(row.id);
      head.set_prompt(row.rendered_prompt);
      head.set_answer(row.answer);
    } else if (const auto* f = std::get_if<SampleGenerated>(&fact.body)) {
      const auto group = groups.find(f->group);
      if (group == groups.end()) continue;
      const bool first =
          group->second.samples.try_emplace(f->sample_index, ToSample(*f, query, data)).second;
      if (first) places[f->sample] = {f->group, f->sample_index};
    } else if (const auto* f = std::get_if<SampleScored>(&fact.body)) {
      const auto place = places.find(f->sample);
      if (place == places.end()) continue;
      v1::RolloutSample& sample = groups[place->second.first].samples[place->second.second];
      if (!sample.scored()) AddScore(*f, &sample);
    } else if (const auto* f = std::get_if<GroupClosed>(&fact.body)) {
      const auto group = groups.find(f->group);
      if (group == groups.end()) continue;
      group->second.head.set_closed(true);
      group->second.head.set_trainable(f->trainable);
      group->second.head.set_reason(f->reason);
    }
  }
  std::vector<v1::ListRolloutsResponse> all;
  for (auto& [id, group] : groups) {
    if (all.size() >= query.max_groups) break;
    for (auto& [index, sample] : group.samples) *group.head.add_samples() = std::move(sample);
    all.push_back(std::move(group.head));
  }
  return all;
}

std::vector<v1::ListRolloutsResponse> SplitRollout(v1::ListRolloutsResponse group,
                                                   size_t max_bytes) {
  std::vector<v1::ListRolloutsResponse> parts;
  v1::ListRolloutsResponse head = group;
  head.clear_samples();
  parts.push_back(head);
  size_t bytes = head.ByteSizeLong();
  for (v1::RolloutSample& sample : *group.mutable_samples()) {
    const size_t size = sample.ByteSizeLong();
    if (parts.back().samples_size() > 0 && bytes + size > max_bytes) {
      parts.push_back(head);
      bytes = head.ByteSizeLong();
    }
    bytes += size;
    *parts.back().add_samples() = std::move(sample);
  }
  return parts;
}

}  // namespace titan::orchestrator
