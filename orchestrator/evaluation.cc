// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/evaluation.h"

#include <utility>

#include "core/base/check.h"

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
  if (due) queue_.push_back(version);
}

void Evaluations::OnPinned(const EvaluationPinned& event, Fleet& fleet, Instant now) {
  if (!active_.has_value() || active_->version != event.version ||
      active_->phase != Phase::kPinning || !active_->asked) {
    return;
  }
  active_->asked = false;
  last_progress_ = now;
  const Status& status = event.status;
  if (status.ok()) {
    active_->phase = Phase::kRunning;
    active_->scored.assign(rows_.size(), false);
    for (uint32_t question = 0; question < rows_.size(); ++question) {
      Fleet::Work work;
      work.group = MakeEvaluationGroupId(event.version, question);
      work.version = event.version;
      work.data_row = rows_[question];
      work.temperature = 0;
      work.max_new_tokens = spec_->EvaluationTokens();
      work.sample_ids = {MakeSampleId(work.group, 0)};
      fleet.AddWork(std::move(work));
    }
    return;
  }
  last_problem_ = MessageOf(status);
  const bool gone = status.code() == StatusCode::kNotFound ||
                    status.code() == StatusCode::kFailedPrecondition ||
                    status.code() == StatusCode::kInvalidArgument;
  if (!gone) {
    active_->retry_at = active_->backoff.Next(now);
    return;
  }
  if (IsLast(event.version)) {
    failure_ = "the last version could not be evaluated: " + last_problem_;
  }
  EvaluationReport report;
  report.version = event.version;
  report.skipped_reason = "the version could not be pinned: " + last_problem_;
  reports_.push_back(std::move(report));
  active_.reset();
}

void Evaluations::OnUnpinned(const EvaluationUnpinned& event, Instant now) {
  if (!active_.has_value() || active_->version != event.version ||
      active_->phase != Phase::kUnpinning || !active_->asked) {
    return;
  }
  // A version that stays pinned would keep the slot from every later evaluation.
  if (!event.status.ok()) {
    last_problem_ = MessageOf(event.status);
    active_->asked = false;
    active_->retry_at = active_->backoff.Next(now);
    return;
  }
  last_progress_ = now;
  active_.reset();
}

void Evaluations::OnSample(const SampleArrived& event, Scorer& scorer, Instant now) {
  if (!active_.has_value() || active_->phase != Phase::kRunning) return;
  const uint32_t question = QuestionOf(event.group);
  if (question >= rows_.size()) return;
  last_progress_ = now;
  active_->num_tokens += event.reply->token_ids.size();
  Scorer::Item item;
  item.group = event.group;
  item.what = {MakeSampleId(event.group, 0), rows_[question], event.reply,
               event.finish == FinishReason::kLength};
  scorer.Add(std::move(item), now);
}

void Evaluations::OnScored(const Scorer::Scored& scored, Instant now) {
  if (!active_.has_value() || active_->phase != Phase::kRunning) return;
  const uint32_t question = QuestionOf(scored.group);
  if (question >= rows_.size() || active_->scored[question]) return;
  last_progress_ = now;
  active_->scored[question] = true;
  active_->num_correct += scored.outcome.value >= 1.0;
  if (++active_->num_scored < rows_.size()) return;
  EvaluationReport report;
  report.version = active_->version;
  report.questions = static_cast<uint32_t>(rows_.size());
  report.correct = active_->num_correct;
  report.accuracy = static_cast<double>(report.correct) / report.questions;
  report.completion_tokens_mean = static_cast<double>(active_->num_tokens) / report.questions;
  report.seconds_since_running = Seconds(now - running_since_);
  reports_.push_back(std::move(report));
  active_->phase = Phase::kReleasing;
}

void Evaluations::Pump(Fleet& fleet, Instant now, Outbox& out) {
  if (!active_.has_value() && !queue_.empty()) {
    active_.emplace();
    active_->version = queue_.front();
    active_->retry_at = now;
    queue_.pop_front();
  }
  fleet.WantEvaluation(active_.has_value() && active_->phase == Phase::kRunning
                           ? std::optional(active_->version)
                           : std::nullopt);
  if (!active_.has_value()) return;
  if (active_->phase == Phase::kPinning && !active_->asked && active_->retry_at <= now) {
    active_->asked = true;
    out.Do(PinEvaluation{run_id_, active_->version});
  }
  if (active_->phase == Phase::kReleasing && !fleet.HoldsEvaluation()) {
    active_->phase = Phase::kUnpinning;
    active_->retry_at = now;
    active_->backoff.Reset();
  }
  if (active_->phase == Phase::kUnpinning && !active_->asked && active_->retry_at <= now) {
    active_->asked = true;
    out.Do(UnpinEvaluation{run_id_, active_->version});
  }
}

std::vector<EvaluationReport> Evaluations::TakeReports() { return std::exchange(reports_, {}); }

std::optional<std::string> Evaluations::Failure(Instant now, bool training_over) const {
  if (!failure_.empty()) return failure_;
  if (!training_over || !active_.has_value() ||
      now - last_progress_ <= Millis(spec_->deadlines.step_ms)) {
    return std::nullopt;
  }
  return "the evaluation of version " + std::to_string(active_->version) +
         " did not move for deadlines.step_ms (" + std::to_string(spec_->deadlines.step_ms) +
         " ms)" + (last_problem_.empty() ? "" : "; last: " + last_problem_);
}

std::optional<PolicyVersion> Evaluations::pinned() const {
  if (!active_.has_value() || (active_->phase == Phase::kPinning && !active_->asked)) {
    return std::nullopt;
  }
  return active_->version;
}

}  // namespace titan::orchestrator
