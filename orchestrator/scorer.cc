// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/scorer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "orchestrator/advantage.h"

namespace titan::orchestrator {

void Scorer::Join(const WorkerReady& ready) { services_[ready.name.worker_id] = ready; }

bool Scorer::Leave(const WorkerName& name, Instant now) {
  const auto found = services_.find(name.worker_id);
  if (found == services_.end() || found->second.name != name) return false;
  services_.erase(found);
  for (auto request = requests_.begin(); request != requests_.end();) {
    const auto current = request++;
    if (current->second.worker != name) continue;
    Retry(current->second.samples, now, "reward service " + name.worker_id + " was lost");
    requests_.erase(current);
  }
  return true;
}

bool Scorer::HasGrader(const std::string& grader) const {
  return std::any_of(services_.begin(), services_.end(), [&](const auto& entry) {
    const auto& graders = entry.second.graders;
    return std::find(graders.begin(), graders.end(), grader) != graders.end();
  });
}

std::vector<std::string> Scorer::graders() const {
  std::set<std::string> all;
  for (const auto& [id, service] : services_) {
    all.insert(service.graders.begin(), service.graders.end());
  }
  return {all.begin(), all.end()};
}

void Scorer::Begin(std::string run_id, std::shared_ptr<const JobSpec> spec,
                   std::shared_ptr<const Dataset> dataset) {
  Stop();
  run_id_ = std::move(run_id);
  spec_ = std::move(spec);
  dataset_ = std::move(dataset);
}

void Scorer::Stop() {
  entries_.clear();
  waiting_.clear();
  requests_.clear();
  spec_.reset();
  dataset_.reset();
  last_problem_.clear();
  hopeless_.clear();
}

void Scorer::Add(Item item, Instant now) {
  const SampleId sample = item.what.sample;
  Entry entry;
  entry.item = std::move(item);
  entry.since = entry.ready_at = now;
  if (entries_.emplace(sample, std::move(entry)).second) waiting_.insert(sample);
}

void Scorer::Retry(const std::vector<SampleId>& samples, Instant now, const std::string& why) {
  last_problem_ = why;
  for (const SampleId sample : samples) {
    const auto found = entries_.find(sample);
    if (found == entries_.end() || !found->second.in_flight) continue;
    found->second.in_flight = false;
    found->second.ready_at = found->second.backoff.Next(now);
    waiting_.insert(sample);
  }
}

std::vector<Scorer::Scored> Scorer::OnAnswer(const ScoreAnswered& event, Instant now) {
  std::vector<Scored> scored;
  const auto found = requests_.find(event.request);
  if (event.run_id != run_id_ || found == requests_.end()) return scored;
  const Request request = std::move(found->second);
  requests_.erase(found);
  const std::string who = "reward service " + request.worker.worker_id;
  if (!event.status.ok()) {
    if (event.status.code() == StatusCode::kInvalidArgument ||
        event.status.code() == StatusCode::kUnimplemented) {
      hopeless_ = who + " refuses: " + MessageOf(event.status);
    }
    Retry(request.samples, now, who + ": " + MessageOf(event.status));
    return scored;
  }
  if (event.results.size() != request.samples.size()) {
    Retry(request.samples, now,
          who + " answered " + std::to_string(event.results.size()) + " results for " +
              std::to_string(request.samples.size()) + " items");
    return scored;
  }
  for (size_t i = 0; i < request.samples.size(); ++i) {
    const auto entry = entries_.find(request.samples[i]);
    if (entry == entries_.end()) continue;
    const ScoreOutcome& outcome = event.results[i];
    if (outcome.kind == ScoreOutcome::Kind::kInfraFault) {
      Retry({request.samples[i]}, now, who + ": " + outcome.reason);
    } else if (!(std::abs(outcome.value) <= kMaxReward)) {
      Retry({request.samples[i]}, now, who + " answered a value that is not a finite reward");
    } else {
      scored.push_back({entry->second.item.group, entry->second.item.sample_index,
                        request.samples[i], outcome, event.grader_version});
      entries_.erase(entry);
    }
  }
  return scored;
}

void Scorer::Pump(Instant now, Outbox& out) {
  if (waiting_.empty() || spec_ == nullptr) return;
  // The service with the fewest requests among those that know the grader.
  const auto choose = [&]() -> const WorkerReady* {
    const WorkerReady* best = nullptr;
    size_t best_load = 0;
    for (const auto& [id, service] : services_) {
      const auto& graders = service.graders;
      if (std::find(graders.begin(), graders.end(), spec_->reward.grader) == graders.end())
        continue;
      size_t load = 0;
      for (const auto& [number, request] : requests_) load += request.worker == service.name;
      if (best == nullptr || load < best_load) {
        best = &service;
        best_load = load;
      }
    }
    return best;
  };
  std::vector<SampleId> ready;
  for (const SampleId sample : waiting_) {
    if (entries_.at(sample).ready_at <= now) ready.push_back(sample);
  }
  for (size_t at = 0; at < ready.size(); at += kItemsPerRequest) {
    const WorkerReady* service = choose();
    if (service == nullptr) return;
    Score score;
    score.reward = service->name;
    score.run_id = run_id_;
    score.request = next_request_++;
    score.grader = spec_->reward.grader;
    score.parameters_json = spec_->reward.grader_parameters_json;
    score.dataset = dataset_;
    Request request;
    request.worker = service->name;
    for (size_t i = at; i < std::min(ready.size(), at + kItemsPerRequest); ++i) {
      Entry& entry = entries_.at(ready[i]);
      entry.in_flight = true;
      waiting_.erase(ready[i]);
      score.items.push_back(entry.item.what);
      request.samples.push_back(ready[i]);
    }
    requests_.emplace(score.request, std::move(request));
    out.Do(std::move(score));
  }
}

std::optional<std::string> Scorer::Expired(Instant now) const {
  if (spec_ == nullptr) return std::nullopt;
  if (!hopeless_.empty()) return hopeless_;
  const Duration limit = Millis(spec_->deadlines.reward_ms);
  uint64_t num_late = 0;
  for (const auto& [sample, entry] : entries_) num_late += now - entry.since > limit;
  if (num_late == 0) return std::nullopt;
  return std::to_string(num_late) + " samples have no score after deadlines.reward_ms (" +
         std::to_string(spec_->deadlines.reward_ms) + " ms)" +
         (last_problem_.empty()
              ? std::string("; no reward service offers the grader ") + spec_->reward.grader
              : "; last: " + last_problem_);
}

}  // namespace titan::orchestrator
