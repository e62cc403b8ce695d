// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/scorer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>

#include "orchestrator/advantage.h"
#include "orchestrator/words.h"

namespace titan::orchestrator {

namespace {

// What one answer may weigh in the journal.
constexpr size_t kMaxComponents = 64;
constexpr size_t kMaxComponentName = 128;

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// Why an outcome that a service calls a score is none; empty: it is one.
std::string Nonsense(const ScoreOutcome& outcome) {
  if (!(std::abs(outcome.value) <= kMaxReward)) {
    return "answered the value " + Text(outcome.value) +
           ", which is not a finite reward of at most 1e100";
  }
  if (outcome.components.size() > kMaxComponents) {
    return "answered " + std::to_string(outcome.components.size()) + " components; at most " +
           std::to_string(kMaxComponents);
  }
  for (const auto& [name, value] : outcome.components) {
    if (name.empty() || name.size() > kMaxComponentName) {
      return "answered a component with a name of " + std::to_string(name.size()) +
             " bytes; valid: 1 to " + std::to_string(kMaxComponentName);
    }
    if (!std::isfinite(value)) {
      return "answered the value " + Text(value) + " for the component " + name +
             ", which is not finite";
    }
  }
  return "";
}

}  // namespace

void Scorer::Join(const WorkerReady& ready) {
  services_[ready.name.worker_id] = ready;
  silent_.erase(ready.name.worker_id);
}

void Scorer::OnSilent(const WorkerSilent& event) {
  silent_[event.name.worker_id] = {event.name.incarnation, Shortened(event.reason)};
}

std::string Scorer::Silent() const {
  std::string all;
  for (const auto& [id, silent] : silent_) {
    all += (all.empty() ? "" : "; ") + std::string("reward service ") + id + " registered, but " +
           silent.reason;
  }
  return all;
}

bool Scorer::Leave(const WorkerName& name, Instant now) {
  const auto silent = silent_.find(name.worker_id);
  if (silent != silent_.end() && silent->second.incarnation == name.incarnation) {
    silent_.erase(silent);
  }
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
      hopeless_ = who + " refuses: " + WordsOf(event.status) +
                  "; correct the job's reward part or the service, and submit again";
    }
    Retry(request.samples, now, who + ": " + WordsOf(event.status));
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
      Retry({request.samples[i]}, now,
            who + " reports a fault of its own: " + Shortened(outcome.reason));
    } else if (const std::string nonsense = Nonsense(outcome); !nonsense.empty()) {
      Retry({request.samples[i]}, now, who + " " + nonsense);
    } else {
      scored.push_back({entry->second.item.group, entry->second.item.sample_index,
                        request.samples[i], outcome, Shortened(event.grader_version)});
      scored.back().outcome.reason = Shortened(outcome.reason);
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
    score.deadline_ms = spec_->deadlines.reward_ms / 2;
    Request request;
    request.worker = service->name;
    request.sent = now;
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
  std::string why = last_problem_;
  if (why.empty()) {  // nothing was answered at all
    why = std::string("no reward service offers the grader ") + spec_->reward.grader;
    for (const auto& [number, request] : requests_) {
      const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - request.sent);
      why = "reward service " + request.worker.worker_id + " has not answered a request of " +
            std::to_string(request.samples.size()) + " items for " +
            std::to_string(waited.count()) + " ms";
      break;
    }
  }
  return std::to_string(num_late) + " samples have no score after deadlines.reward_ms (" +
         std::to_string(spec_->deadlines.reward_ms) + " ms); last: " + why +
         "; mend the reward service or raise deadlines.reward_ms, and submit again";
}

}  // namespace titan::orchestrator
