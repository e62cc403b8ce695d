// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/evaluation.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "orchestrator/words.h"

namespace titan::orchestrator {
namespace {

uint32_t QuestionOf(GroupId id) { return static_cast<uint32_t>(id.value & 0xffffff); }

}  // namespace

Evaluations::Evaluations(std::shared_ptr<const JobSpec> spec, std::string run_id,
                         std::vector<uint32_t> rows)
    : spec_(std::move(spec)), run_id_(std::move(run_id)), rows_(std::move(rows)) {
  TITAN_CHECK(rows_.size() < (size_t{1} << 24));
}

void Evaluations::OnCommitted(PolicyVersion version) {
  if (rows_.empty()) return;
  const uint32_t every = spec_->evaluation.every_steps;
  const bool due = version == 0 || IsLast(version) || (every != 0 && version % every == 0);
  if (due) evaluations_.push_back({.version = version});
}

Evaluations::Evaluation* Evaluations::Running() {
  const bool runs = !evaluations_.empty() && evaluations_.front().phase == Phase::kRunning;
  return runs ? &evaluations_.front() : nullptr;
}

void Evaluations::StartIfPinned(Fleet& fleet) {
  if (evaluations_.empty() || evaluations_.front().phase != Phase::kPinned) return;
  Evaluation& evaluation = evaluations_.front();
  evaluation.phase = Phase::kRunning;
  evaluation.scored.assign(rows_.size(), false);
  for (uint32_t question = 0; question < rows_.size(); ++question) {
    Fleet::Work work;
    work.group = MakeEvaluationGroupId(evaluation.version, question);
    work.version = evaluation.version;
    work.data_row = rows_[question];
    work.temperature = 0;
    work.max_new_tokens = spec_->EvaluationTokens();
    work.sample_ids = {MakeSampleId(work.group, 0)};
    fleet.AddWork(std::move(work));
  }
}

void Evaluations::OnPinned(const EvaluationPinned& event, Fleet& fleet, Instant now) {
  const auto found =
      std::find_if(evaluations_.begin(), evaluations_.end(), [&](const Evaluation& evaluation) {
        return evaluation.version == event.version && evaluation.phase == Phase::kPinning;
      });
  if (found == evaluations_.end() || !found->asked) return;
  found->asked = false;
  last_progress_ = now;
  const Status& status = event.status;
  if (status.ok()) {
    found->phase = Phase::kPinned;
    StartIfPinned(fleet);
    return;
  }
  last_problem_ = WordsOf(status);
  const bool gone = status.code() == StatusCode::kNotFound ||
                    status.code() == StatusCode::kFailedPrecondition ||
                    status.code() == StatusCode::kInvalidArgument;
  if (!gone) {
    found->retry_at = found->backoff.Next(now);
    return;
  }
  if (IsLast(event.version)) {
    failure_ = "the last version could not be evaluated: " + last_problem_;
  }
  EvaluationReport report;
  report.version = event.version;
  report.skipped_reason = "the version could not be pinned: " + last_problem_;
  reports_.push_back(std::move(report));
  evaluations_.erase(found);
  StartIfPinned(fleet);
}

void Evaluations::OnUnpinned(const EvaluationUnpinned& event, Instant now) {
  if (evaluations_.empty() || evaluations_.front().version != event.version ||
      evaluations_.front().phase != Phase::kUnpinning || !evaluations_.front().asked) {
    return;
  }
  Evaluation& evaluation = evaluations_.front();
  // A version that stays pinned would keep the slot from every later evaluation.
  if (!event.status.ok()) {
    last_problem_ = WordsOf(event.status);
    evaluation.asked = false;
    evaluation.retry_at = evaluation.backoff.Next(now);
    return;
  }
  last_progress_ = now;
  evaluations_.pop_front();
}

void Evaluations::OnSample(const SampleArrived& event, Scorer& scorer, Instant now) {
  Evaluation* running = Running();
  if (running == nullptr) return;
  const uint32_t question = QuestionOf(event.group);
  if (question >= rows_.size()) return;
  last_progress_ = now;
  running->num_tokens += event.reply->token_ids.size();
  Scorer::Item item;
  item.group = event.group;
  item.what = {MakeSampleId(event.group, 0), rows_[question], event.reply,
               event.finish == FinishReason::kLength};
  scorer.Add(std::move(item), now);
}

void Evaluations::OnScored(const Scorer::Scored& scored, Instant now) {
  Evaluation* running = Running();
  if (running == nullptr) return;
  const uint32_t question = QuestionOf(scored.group);
  if (question >= rows_.size() || running->scored[question]) return;
  last_progress_ = now;
  running->scored[question] = true;
  running->num_correct += scored.outcome.value >= 1.0;
  if (++running->num_scored < rows_.size()) return;
  EvaluationReport report;
  report.version = running->version;
  report.questions = static_cast<uint32_t>(rows_.size());
  report.correct = running->num_correct;
  report.accuracy = static_cast<double>(report.correct) / report.questions;
  report.completion_tokens_mean = static_cast<double>(running->num_tokens) / report.questions;
  report.seconds_since_running = Seconds(now - running_since_);
  reports_.push_back(std::move(report));
  running->phase = Phase::kReleasing;
}

void Evaluations::Pump(Fleet& fleet, Instant now, Outbox& out) {
  StartIfPinned(fleet);
  const Evaluation* running = Running();
  fleet.WantEvaluation(running != nullptr ? std::optional(running->version) : std::nullopt);
  const size_t num_slots = std::min<size_t>(spec_->evaluation.slots, evaluations_.size());
  for (size_t i = 0; i < num_slots; ++i) {
    Evaluation& evaluation = evaluations_[i];
    if (evaluation.phase != Phase::kPinning || evaluation.asked || now < evaluation.retry_at) {
      continue;
    }
    evaluation.asked = true;
    out.Do(PinEvaluation{run_id_, evaluation.version});
  }
  if (evaluations_.empty()) return;
  Evaluation& oldest = evaluations_.front();
  if (oldest.phase == Phase::kReleasing && !fleet.HoldsEvaluation()) {
    oldest.phase = Phase::kUnpinning;
    oldest.retry_at = now;
    oldest.backoff.Reset();
  }
  if (oldest.phase == Phase::kUnpinning && !oldest.asked && oldest.retry_at <= now) {
    oldest.asked = true;
    out.Do(UnpinEvaluation{run_id_, oldest.version});
  }
}

std::vector<EvaluationReport> Evaluations::TakeReports() { return std::exchange(reports_, {}); }

std::optional<std::string> Evaluations::Failure(Instant now, bool training_over) const {
  if (!failure_.empty()) return failure_;
  if (!training_over || evaluations_.empty() ||
      now - last_progress_ <= Millis(spec_->deadlines.step_ms)) {
    return std::nullopt;
  }
  return "the evaluation of version " + std::to_string(evaluations_.front().version) +
         " did not move for deadlines.step_ms (" + std::to_string(spec_->deadlines.step_ms) +
         " ms)" + (last_problem_.empty() ? "" : "; last: " + last_problem_);
}

std::vector<PolicyVersion> Evaluations::pinned() const {
  std::vector<PolicyVersion> versions;
  for (const Evaluation& evaluation : evaluations_) {
    if (evaluation.phase != Phase::kPinning || evaluation.asked) {
      versions.push_back(evaluation.version);
    }
  }
  return versions;
}

}  // namespace titan::orchestrator
