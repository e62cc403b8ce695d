// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/fleet.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "orchestrator/words.h"

namespace titan::orchestrator {
namespace {

// Statuses of a load that the same generator answers again: the model or its own configuration is
// what it cannot use. What depends on others (memory, the store, a damaged copy) may pass.
bool IsRefusal(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kUnimplemented;
}

// Statuses that the same request gets again, whoever serves it.
bool IsHopeless(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
    case StatusCode::kUnimplemented:
    case StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

constexpr uint64_t kEvaluationPriority = uint64_t{1} << 62;

}  // namespace

bool Fleet::Join(const WorkerReady& ready) {
  const auto known = generators_.find(ready.name.worker_id);
  if (known != generators_.end()) {
    if (known->second.name == ready.name) return false;
    size_t reissued = 0;
    Leave(WorkerName(known->second.name), &reissued);
  }
  Generator generator;
  generator.name = ready.name;
  generator.max_versions = std::max(1u, ready.max_versions);
  generator.max_running = std::max(1u, ready.max_running_sequences);
  generators_[ready.name.worker_id] = std::move(generator);
  return true;
}

Fleet::Generator* Fleet::Find(const WorkerName& name) {
  const auto found = generators_.find(name.worker_id);
  if (found == generators_.end() || found->second.name != name) return nullptr;
  return &found->second;
}

bool Fleet::Leave(const WorkerName& name, size_t* samples_reissued) {
  if (Find(name) == nullptr) return false;
  for (auto request = requests_.begin(); request != requests_.end();) {
    const auto current = request++;
    if (current->second.worker == name) *samples_reissued += EndRequest(current);
  }
  generators_.erase(name.worker_id);
  return true;
}

void Fleet::Begin(Run run) {
  run_ = std::move(run);
  running_ = true;
  served_ = false;
  for (auto& [id, generator] : generators_) generator.refuses = false;
  last_problem_.clear();
  told_.clear();
}

size_t Fleet::num_refusing() const {
  return static_cast<size_t>(std::count_if(generators_.begin(), generators_.end(),
                                           [](const auto& one) { return one.second.refuses; }));
}

void Fleet::Stop() {
  running_ = false;
  pending_.clear();
  waiting_.clear();
  wanted_.clear();
  evaluation_.reset();
  unfinished_training_ = unfinished_evaluation_ = waiting_training_ = 0;
}

void Fleet::Abandon(Instant now) {
  Stop();
  requests_.clear();
  for (auto& [id, generator] : generators_) {
    if (!generator.holds.empty()) {
      generator.reset = ResetState::kDue;
      generator.reset_at = now;
    }
    generator.holds.clear();
    generator.outstanding_training = generator.outstanding_evaluation = 0;
  }
}

void Fleet::AddWork(Work work) {
  Pending pending;
  pending.samples.resize(work.sample_ids.size());
  pending.num_waiting = static_cast<uint32_t>(work.sample_ids.size());
  const GroupId id = work.group;
  (IsEvaluation(id) ? unfinished_evaluation_ : unfinished_training_) += pending.num_waiting;
  waiting_training_ += !IsEvaluation(id);
  pending.work = std::move(work);
  TITAN_CHECK(pending_.emplace(id, std::move(pending)).second);
  waiting_.insert(id);
}

std::optional<Fleet::LoadProblem> Fleet::OnLoaded(const VersionLoaded& event, Instant now) {
  Generator* generator = Find(event.worker);
  if (generator == nullptr) return std::nullopt;
  const auto hold = generator->holds.find({event.evaluation, event.version});
  if (hold == generator->holds.end() || hold->second.state != HoldState::kLoading) {
    return std::nullopt;
  }
  if (event.status.ok()) {
    hold->second.state = HoldState::kHeld;
    generator->refuses = false;
    served_ = true;
    return std::nullopt;
  }
  last_problem_ = event.worker.worker_id + " could not load version " +
                  std::to_string(event.version) + ": " + WordsOf(event.status);
  const HoldKey about = IsRefusal(event.status) ? HoldKey() : hold->first;
  const bool first = told_.insert({about, event.status.code()}).second;
  if (IsRefusal(event.status)) {
    hold->second.state = HoldState::kRefused;
    generator->refuses = true;
    // One that served and was lost comes back: the job waits for it.
    const bool hopeless = !served_ && num_refusing() == generators_.size();
    if (!first && !hopeless) return std::nullopt;
    return LoadProblem{last_problem_, hopeless};
  }
  hold->second.state = HoldState::kFailed;
  hold->second.retry_at = generator->backoff.Next(now);
  return first ? std::optional(LoadProblem{last_problem_}) : std::nullopt;
}

void Fleet::OnReleased(const VersionReleased& event, Instant now) {
  Generator* generator = Find(event.worker);
  if (generator == nullptr) return;
  const auto hold = generator->holds.find({event.evaluation, event.version});
  if (hold == generator->holds.end() || hold->second.state != HoldState::kReleasing) return;
  if (event.status.ok()) {
    generator->release_backoff.Reset();
    generator->holds.erase(hold);
    return;
  }
  last_problem_ = event.worker.worker_id + " did not give version " +
                  std::to_string(event.version) + " back: " + WordsOf(event.status);
  hold->second.state = HoldState::kReleaseFailed;
  hold->second.retry_at = generator->release_backoff.Next(now);
}

void Fleet::OnReset(const GeneratorReset& event, Instant now) {
  Generator* generator = Find(event.worker);
  if (generator == nullptr || generator->reset != ResetState::kAsked) return;
  if (event.status.ok()) {
    generator->release_backoff.Reset();
    generator->reset = ResetState::kNone;
    return;
  }
  last_problem_ = event.worker.worker_id + " could not be reset: " + WordsOf(event.status);
  generator->reset = ResetState::kDue;
  generator->reset_at = generator->release_backoff.Next(now);
}

void Fleet::PumpResets(Instant now, Outbox& out) {
  for (auto& [id, generator] : generators_) {
    if (generator.reset != ResetState::kDue || generator.reset_at > now) continue;
    generator.reset = ResetState::kAsked;
    out.Do(ResetGenerator{generator.name});
  }
}

void Fleet::Settle(Generator& generator, GroupId group, PolicyVersion version,
                   uint32_t num_samples) {
  const bool evaluation = IsEvaluation(group);
  uint32_t& count = evaluation ? generator.outstanding_evaluation : generator.outstanding_training;
  TITAN_CHECK(count >= num_samples);
  count -= num_samples;
  const auto hold = generator.holds.find({evaluation, version});
  if (hold != generator.holds.end()) hold->second.outstanding -= num_samples;
}

bool Fleet::OnSample(const SampleArrived& event) {
  const auto request = requests_.find({event.group, event.attempt});
  if (request != requests_.end() && request->second.worker == event.worker &&
      request->second.remaining.erase(event.sample_index) != 0) {
    if (Generator* generator = Find(event.worker)) {
      Settle(*generator, event.group, request->second.version, 1);
      generator->backoff.Reset();
    }
  }
  const auto found = pending_.find(event.group);
  if (found == pending_.end() || event.sample_index >= found->second.samples.size()) return false;
  Pending& pending = found->second;
  SampleState& sample = pending.samples[event.sample_index];
  if (sample.done) return false;
  sample.done = true;
  ++pending.num_done;
  --(IsEvaluation(event.group) ? unfinished_evaluation_ : unfinished_training_);
  if (sample.attempt == 0 && --pending.num_waiting == 0) {
    // A stream of a lost worker delivered after all.
    waiting_.erase(event.group);
    waiting_training_ -= !IsEvaluation(event.group);
  }
  if (pending.num_done == pending.samples.size()) pending_.erase(found);
  return true;
}

size_t Fleet::EndRequest(std::map<RequestKey, Request>::iterator request) {
  const auto [group, attempt] = request->first;
  if (Generator* generator = Find(request->second.worker)) {
    Settle(*generator, group, request->second.version,
           static_cast<uint32_t>(request->second.remaining.size()));
  }
  size_t reissued = 0;
  const auto found = pending_.find(group);
  if (found != pending_.end()) {
    for (const uint32_t index : request->second.remaining) {
      SampleState& sample = found->second.samples[index];
      if (sample.done || sample.attempt != attempt) continue;
      sample.attempt = 0;
      ++found->second.num_waiting;
      ++reissued;
    }
    if (found->second.num_waiting > 0 && waiting_.insert(group).second) {
      waiting_training_ += !IsEvaluation(group);
    }
  }
  requests_.erase(request);
  return reissued;
}

std::optional<std::string> Fleet::OnEnded(const RolloutEnded& event, Instant now) {
  const auto request = requests_.find({event.group, event.attempt});
  if (request == requests_.end() || request->second.worker != event.worker) return std::nullopt;
  const PolicyVersion version = request->second.version;
  const bool incomplete = !request->second.remaining.empty();
  EndRequest(request);
  if (!incomplete || !running_) return std::nullopt;
  const Status status =
      event.status.ok() ? Internal("the stream ended before every sample was there") : event.status;
  const std::string text = event.worker.worker_id + " did not finish a group of version " +
                           std::to_string(version) + ": " + WordsOf(status);
  last_problem_ = text;
  if (IsHopeless(status)) return text;
  Generator* generator = Find(event.worker);
  if (generator == nullptr) return std::nullopt;
  generator->not_before = generator->backoff.Next(now);
  const auto hold = generator->holds.find({IsEvaluation(event.group), version});
  if (status.code() == StatusCode::kFailedPrecondition && hold != generator->holds.end() &&
      hold->second.state == HoldState::kHeld) {
    // The version is not held there any more: load it again.
    hold->second.state = HoldState::kFailed;
    hold->second.retry_at = generator->not_before;
  }
  return std::nullopt;
}

void Fleet::PumpVersions(Generator& generator, Instant now, Outbox& out) {
  if (generator.reset != ResetState::kNone) return;
  // With room for one version only, evaluations use the gaps of training.
  const bool shared = generator.max_versions == 1;
  const bool evaluate = evaluation_.has_value() && (!shared || waiting_training_ == 0);
  std::set<HoldKey> targets;
  size_t room = generator.max_versions - (evaluate ? 1 : 0);
  if (shared && evaluate && generator.outstanding_training > 0) room = 1;
  for (size_t i = 0; i < wanted_.size() && i < room; ++i) targets.insert({false, wanted_[i]});
  if (evaluate) targets.insert({true, *evaluation_});

  for (auto& [key, hold] : generator.holds) {
    const bool target = targets.count(key) != 0;
    const bool failed = hold.state == HoldState::kFailed;
    if (target && failed && hold.retry_at <= now) {
      hold.state = HoldState::kLoading;
      out.Do(LoadVersion{generator.name, run_.run_id, key.second, key.first});
    }
    // A load that failed here may have succeeded there: it is given back as well. A release that
    // failed is finished before the version may be loaded anew.
    const bool again = hold.state == HoldState::kReleaseFailed && hold.retry_at <= now;
    const bool settled =
        failed || hold.state == HoldState::kHeld || hold.state == HoldState::kRefused;
    if (again || (!target && settled && hold.outstanding == 0)) {
      hold.state = HoldState::kReleasing;
      out.Do(ReleaseVersion{generator.name, run_.run_id, key.second, key.first});
    }
  }
  for (const HoldKey& key : targets) {
    if (generator.holds.count(key) != 0) continue;
    if (generator.holds.size() >= generator.max_versions) break;
    generator.holds.emplace(key, Hold{});
    out.Do(LoadVersion{generator.name, run_.run_id, key.second, key.first});
  }
}

Fleet::Generator* Fleet::Choose(const Work& work, Instant now) {
  const bool evaluation = IsEvaluation(work.group);
  const uint64_t unfinished = evaluation ? unfinished_evaluation_ : unfinished_training_;
  const uint64_t sharing = std::max(size_t{1}, generators_.size() - num_refusing());
  const uint64_t fair = (unfinished + sharing - 1) / sharing;
  Generator* best = nullptr;
  for (auto& [id, generator] : generators_) {
    const auto hold = generator.holds.find({evaluation, work.version});
    if (hold == generator.holds.end() || hold->second.state != HoldState::kHeld) continue;
    if (generator.not_before > now) continue;
    const uint32_t own =
        evaluation ? generator.outstanding_evaluation : generator.outstanding_training;
    const uint32_t load = evaluation ? generator.outstanding() : own;
    if (load >= generator.max_running || own >= fair) continue;
    if (best == nullptr || std::pair(generator.outstanding(), generator.samples_given) <
                               std::pair(best->outstanding(), best->samples_given)) {
      best = &generator;
    }
  }
  return best;
}

void Fleet::Dispatch(Pending& pending, Generator& generator, Instant now, Outbox& out) {
  const Work& work = pending.work;
  const bool evaluation = IsEvaluation(work.group);
  StartRollout start;
  start.worker = generator.name;
  start.run_id = run_.run_id;
  start.version = work.version;
  start.evaluation = evaluation;
  start.group = work.group;
  start.attempt = ++pending.attempts;
  start.seed = run_.seed;
  start.dataset = run_.dataset;
  start.data_row = work.data_row;
  start.temperature = work.temperature;
  start.max_new_tokens = work.max_new_tokens;
  start.stop_token_ids = run_.stop_token_ids;
  const bool first = evaluation ? work.version == 0 : StepOf(work.group) == 0;
  start.deadline_ms = first ? run_.first_deadline_ms : run_.deadline_ms;
  start.priority = evaluation ? kEvaluationPriority + work.version : StepOf(work.group);
  Request request{generator.name, work.version, {}};
  for (uint32_t i = 0; i < pending.samples.size(); ++i) {
    SampleState& sample = pending.samples[i];
    if (sample.done || sample.attempt != 0) continue;
    sample.attempt = start.attempt;
    start.sample_indexes.push_back(i);
    start.sample_ids.push_back(work.sample_ids[i]);
    request.remaining.insert(i);
  }
  const auto num = static_cast<uint32_t>(start.sample_indexes.size());
  pending.num_waiting = 0;
  waiting_training_ -= !evaluation;
  (evaluation ? generator.outstanding_evaluation : generator.outstanding_training) += num;
  generator.holds.at({evaluation, work.version}).outstanding += num;
  generator.samples_given += num;
  requests_.emplace(RequestKey{work.group, start.attempt}, std::move(request));
  if (!evaluation) {
    out.Append(run_.job_id, now,
               RolloutStarted{work.group, start.attempt, generator.name.worker_id});
  }
  out.Do(std::move(start));
}

std::vector<GroupId> Fleet::Pump(Instant now, Outbox& out) {
  std::vector<GroupId> started;
  if (generators_.empty()) return started;
  for (auto& [id, generator] : generators_) PumpVersions(generator, now, out);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Pending& pending = pending_.at(*it);
    Generator* generator = Choose(pending.work, now);
    if (generator == nullptr) {
      ++it;
      continue;
    }
    Dispatch(pending, *generator, now, out);
    if (!IsEvaluation(*it)) started.push_back(*it);
    it = waiting_.erase(it);
  }
  return started;
}

bool Fleet::Idle() const {
  return requests_.empty() &&
         std::all_of(generators_.begin(), generators_.end(),
                     [](const auto& entry) { return entry.second.holds.empty(); });
}

bool Fleet::HoldsEvaluation() const {
  for (const auto& [id, generator] : generators_) {
    for (const auto& [key, hold] : generator.holds) {
      if (key.first) return true;
    }
  }
  return false;
}

std::string Fleet::Describe(const std::string& worker_id) const {
  const auto found = generators_.find(worker_id);
  if (found == generators_.end()) return "";
  const uint64_t samples = found->second.outstanding();
  if (samples == 0 && found->second.holds.empty()) return "idle";
  std::string text = std::to_string(samples) + (samples == 1 ? " sample" : " samples");
  if (!found->second.holds.empty()) text += "; versions";
  for (const auto& [key, hold] : found->second.holds) {
    text += " " + std::to_string(key.second) + (key.first ? "(evaluation)" : "");
  }
  return text;
}

}  // namespace titan::orchestrator
