// SPDX-License-Identifier: Apache-2.0
//
// Inside a running job: samples, scores, steps, evaluations, deadlines.
#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "orchestrator/run_engine.h"
#include "orchestrator/words.h"

namespace titan::orchestrator {

void RunEngine::OpenSteps(Instant now) {
  auto admitted = run_->schedule.Open(run_->committed);
  if (!admitted.ok()) {
    Fail(MessageOf(admitted.status()), now);
    return;
  }
  for (const Group* group : *admitted) AdmitGroup(*group, now);
}

void RunEngine::AdmitGroup(const Group& group, Instant now) {
  out_.Append(run_->job->job_id, now, GroupAdmitted{group.id, group.data_row, group.version});
  Fleet::Work work;
  work.group = group.id;
  work.version = group.version;
  work.data_row = group.data_row;
  work.temperature = run_->spec->rollout.temperature;
  work.max_new_tokens = run_->spec->rollout.max_new_tokens;
  for (const SampleRecord& sample : group.samples) work.sample_ids.push_back(sample.id);
  fleet_.AddWork(std::move(work));
}

void RunEngine::On(const VersionLoaded& event, Instant now) {
  if (IsCurrent(event.run_id)) {
    const auto problem = fleet_.OnLoaded(event, now);
    if (!problem.has_value()) return;
    if (problem->hopeless && IsRunning()) {
      Fail("no generator can serve the model: " + problem->text, now);
    } else {
      Message(problem->text, now);
    }
  } else if (event.status.ok()) {  // of a run that did not wait for it
    out_.Do(ReleaseVersion{event.worker, event.run_id, event.version, event.evaluation});
  }
}

void RunEngine::On(const VersionReleased& event, Instant now) {
  if (IsCurrent(event.run_id)) fleet_.OnReleased(event, now);
}

void RunEngine::On(const GeneratorReset& event, Instant now) { fleet_.OnReset(event, now); }

void RunEngine::On(const SampleArrived& event, Instant now) {
  if (!IsCurrent(event.run_id)) return;
  const bool evaluation = IsEvaluation(event.group);
  if (!IsRunning()) {
    fleet_.OnSample(event);  // streams still count towards the end of the run
    return;
  }
  // I2: the version of every token is the one that the schedule names.
  const PolicyVersion expected =
      evaluation ? event.group.value << 1 >> 25 : run_->spec->VersionOf(StepOf(event.group));
  const size_t num_tokens = event.reply->token_ids.size();
  if (num_tokens == 0 || num_tokens != event.reply->logprobs.size() || event.spans.size() != 1 ||
      event.spans[0].version != expected || event.spans[0].num_tokens != num_tokens ||
      event.finish == FinishReason::kCancelled) {
    std::string got;
    for (const VersionSpan& span : event.spans) {
      got += " " + std::to_string(span.num_tokens) + " tokens of version " +
             std::to_string(span.version);
    }
    Fail(event.worker.worker_id + " answered a sample of " + std::to_string(num_tokens) +
             " tokens with" + (got.empty() ? " no version span" : got) + "; asked for version " +
             std::to_string(expected),
         now);
    return;
  }
  if (!fleet_.OnSample(event)) {
    ++counters_.duplicate_samples;
    return;
  }
  if (evaluation) {
    run_->evaluations.OnSample(event, scorer_, now);
    return;
  }
  SampleRecord record;
  record.reply = event.reply;
  record.finish = event.finish;
  record.worker_id = event.worker.worker_id;
  record.sequences_running_max = event.sequences_running_max;
  record.batch_fingerprint = event.batch_fingerprint;
  if (!run_->schedule.AddReply(event.group, event.sample_index, std::move(record))) {
    ++counters_.duplicate_samples;
    return;
  }
  run_->schedule.FindStep(StepOf(event.group))->last_sample = now;
  const Group& group = *run_->schedule.FindGroup(event.group);
  const SampleId sample = group.samples[event.sample_index].id;
  out_.Append(run_->job->job_id, now,
              SampleGenerated{event.group, event.sample_index, sample, event.attempt,
                              event.worker.worker_id, event.finish, group.version, event.reply});
  Scorer::Item item;
  item.group = event.group;
  item.sample_index = event.sample_index;
  item.what = {sample, group.data_row, event.reply, event.finish == FinishReason::kLength};
  scorer_.Add(std::move(item), now);
}

void RunEngine::On(const RolloutEnded& event, Instant now) {
  if (!IsCurrent(event.run_id)) return;
  const auto hopeless = fleet_.OnEnded(event, now);
  if (hopeless.has_value() && IsRunning()) Fail(*hopeless, now);
}

void RunEngine::On(const ScoreAnswered& event, Instant now) {
  if (!IsCurrent(event.run_id) || !IsRunning()) return;
  for (const Scorer::Scored& scored : scorer_.OnAnswer(event, now)) {
    if (IsEvaluation(scored.group)) {
      run_->evaluations.OnScored(scored, now);
    } else {
      ApplyScore(scored, now);
    }
    if (!IsRunning()) return;
  }
}

void RunEngine::ApplyScore(const Scorer::Scored& scored, Instant now) {
  const std::string& job_id = run_->job->job_id;
  const ScoreOutcome& outcome = scored.outcome;
  out_.Append(job_id, now,
              SampleScored{scored.sample, outcome.value, outcome.components,
                           run_->spec->reward.grader, scored.grader_version,
                           outcome.kind == ScoreOutcome::Kind::kModelFault ? outcome.reason : ""});
  OpenStep* step = run_->schedule.FindStep(StepOf(scored.group));
  if (step != nullptr) step->last_score = now;
  const auto effect = run_->schedule.AddScore(scored.group, scored.sample_index, outcome.value);
  if (!effect.ok()) {
    Fail(MessageOf(effect.status()), now);
    return;
  }
  if (effect->closed != nullptr) {
    const Group& group = *effect->closed;
    out_.Append(job_id, now, GroupClosed{group.id, group.trainable, group.reason});
  }
  if (effect->admitted != nullptr) AdmitGroup(*effect->admitted, now);
  if (effect->slot_empty && run_->spec->schedule.on_empty_slot == "fail") {
    Fail("slot " + std::to_string(SlotOf(scored.group)) + " of step " +
             std::to_string(StepOf(scored.group)) + " has no trainable group among " +
             std::to_string(run_->spec->schedule.max_candidates) +
             " candidates (schedule.on_empty_slot is fail)",
         now);
  }
}

void RunEngine::StartTraining(Instant now) {
  const Step t = run_->committed;  // step t makes version t + 1
  if (run_->training.has_value() || t >= run_->spec->schedule.steps) return;
  const OpenStep* step = run_->schedule.FindStep(t);
  if (step == nullptr || !step->Complete()) return;
  run_->training = run_->schedule.Plan(t);
  StepPlan& plan = *run_->training;
  run_->training_since = now;
  out_.Append(run_->job->job_id, now, StepPlanned{t, plan.trained, plan.digest});
  const JobSpec::Deadlines& deadlines = run_->spec->deadlines;
  out_.DoDurably(TrainStep{run_->trainer, run_->job->run_id, t, plan.digest,
                           plan.num_groups_trained, step->version, run_->dataset,
                           std::move(plan.samples),
                           t == 0 ? deadlines.first_step_ms : deadlines.step_ms});

  // Data that can never train must not run for ever; counted in the order of steps.
  if (plan.num_groups_trained > 0) {
    run_->untrainable_in_a_row = 0;
    return;
  }
  run_->untrainable_in_a_row += plan.num_groups_untrainable;
  const uint64_t num_rows = run_->dataset->rows.size() - run_->spec->data.held_out;
  const uint64_t limit =
      std::max<uint64_t>(2 * num_rows, uint64_t{50} * run_->spec->schedule.groups_per_step);
  if (run_->untrainable_in_a_row >= limit) {
    Fail("no group was trainable among the last " + std::to_string(run_->untrainable_in_a_row) +
             " (zero_variance: " + std::to_string(run_->untrainable_in_a_row) +
             "); the rewards of a group never differ on this data",
         now);
  }
}

void RunEngine::On(const StepTrained& event, Instant now) {
  if (!IsCurrent(event.run_id) || !IsRunning() || !run_->training.has_value() ||
      run_->training->step != event.step) {
    return;
  }
  const std::string what = "step " + std::to_string(event.step);
  if (!event.status.ok()) {
    const std::string& id = run_->trainer.worker_id;
    Fail("the trainer (worker " + id + ") failed in " + what + ": " + WordsOf(event.status) +
             "; titanctl logs " + id + " shows more",
         now);
    return;
  }
  if (event.result.version != event.step + 1) {
    Fail("the trainer answered version " + std::to_string(event.result.version) + " for " + what,
         now);
    return;
  }
  JobInfo& job = *run_->job;
  const bool trained = run_->training->num_groups_trained > 0;
  if (event.result.updated != trained) {
    Fail("the trainer says that " + what + (trained ? " left" : " changed") +
             " the weights, though the step had " +
             std::to_string(run_->training->num_groups_trained) + " groups to train",
         now);
    return;
  }
  const StepReport report =
      MakeReport(*run_->schedule.FindStep(event.step), *run_->training, event.result, now);
  job.steps_done = event.step + 1;
  job.last_step = report;
  job.parity.Add(report.parity);
  out_.Append(job.job_id, now, StepDone{report});
  out_.DoDurably(ReportStep{job.job_id, report});

  if (!trained) {
    Message(what + " trained nothing: none of its " + std::to_string(report.groups_untrainable) +
                " groups was trainable; version " + std::to_string(report.version) +
                " has the weights of the version before",
            now);
  }

  run_->training.reset();
  run_->schedule.Close(event.step);
  run_->started_before_commit.erase(event.step);
  run_->committed = event.result.version;
  run_->committed_at = now;
  run_->evaluations.OnCommitted(run_->committed);
  run_->evaluations.Touch(now);
  if (report.parity.tokens_differing > 0) {
    const std::string text = "log-probs of trainer and generators differ in " + what + ": " +
                             std::to_string(report.parity.tokens_differing) + " of " +
                             std::to_string(report.parity.tokens_compared) + " tokens; " +
                             Shortened(event.result.first_difference);
    if (run_->spec->parity.on_difference == "stop") {
      Fail(text, now);
      return;
    }
    Message("ALARM: " + text, now);
  }
  OpenSteps(now);
}

StepReport RunEngine::MakeReport(const OpenStep& step, const StepPlan& plan,
                                 const TrainResult& result, Instant now) const {
  StepReport report;
  report.step = step.step;
  report.version = result.version;
  report.weights_digest = Shortened(result.weights_digest);
  report.groups_trained = plan.num_groups_trained;
  report.groups_untrainable = plan.num_groups_untrainable;
  double reward_sum = 0;
  std::map<std::string, GeneratorShare> shares;
  for (const auto& [id, group] : step.groups) {
    for (const SampleRecord& sample : group.samples) {
      ++report.samples;
      reward_sum += sample.score;
      const uint64_t tokens = sample.reply->token_ids.size();
      report.tokens_generated += tokens;
      report.sequences_running_max =
          std::max(report.sequences_running_max, sample.sequences_running_max);
      GeneratorShare& share = shares[sample.worker_id];
      share.worker_id = sample.worker_id;
      share.tokens += tokens;
      share.batch_fingerprint = HashFields(share.batch_fingerprint, sample.batch_fingerprint);
    }
  }
  report.reward_mean = reward_sum / report.samples;
  report.completion_tokens_mean = static_cast<double>(report.tokens_generated) / report.samples;
  for (auto& [id, share] : shares) report.generator_shares.push_back(std::move(share));
  report.tokens_trained = result.tokens_trained;
  report.sample_tokens_max = result.sample_tokens_max;
  report.loss = result.loss;
  report.gradient_norm = result.gradient_norm;
  report.clip_fraction = result.clip_fraction;
  report.ratio_max = result.ratio_max;
  report.learning_rate = result.learning_rate;
  report.parity = result.parity;
  report.samples_per_pack_min = result.samples_per_pack_min;
  report.age = step.step - step.version;
  const auto before = run_->started_before_commit.find(step.step);
  report.generated_before_previous_commit =
      before != run_->started_before_commit.end() && before->second;
  PhaseTimes& phases = report.phases;
  phases.wall = Seconds(now - run_->committed_at);
  if (step.first_rollout.has_value() && step.last_sample.has_value()) {
    phases.generate = Seconds(*step.last_sample - *step.first_rollout);
  }
  if (step.last_sample.has_value() && step.last_score.has_value()) {
    phases.score = Seconds(*step.last_score - *step.last_sample);
  }
  phases.wait_for_samples = Seconds(run_->training_since - run_->committed_at);
  phases.parity_forward = result.parity_forward_seconds;
  phases.forward = result.forward_seconds;
  phases.backward = result.backward_seconds;
  phases.optimizer = result.optimizer_seconds;
  phases.publish = result.publish_seconds;
  if (phases.wall > 0) {
    report.generated_tokens_per_second = static_cast<double>(report.tokens_generated) / phases.wall;
  }
  return report;
}

void RunEngine::On(const EvaluationPinned& event, Instant now) {
  if (IsCurrent(event.run_id) && IsRunning()) run_->evaluations.OnPinned(event, fleet_, now);
}

void RunEngine::On(const EvaluationUnpinned& event, Instant now) {
  if (IsCurrent(event.run_id) && IsRunning()) run_->evaluations.OnUnpinned(event, now);
}

void RunEngine::AdvanceRunning(Instant now) {
  JobInfo& job = *run_->job;
  StartTraining(now);
  if (!IsRunning()) return;
  fleet_.WantVersions(run_->schedule.VersionsInUse());
  run_->evaluations.Pump(fleet_, now, out_);
  for (const GroupId group : fleet_.Pump(now, out_)) {
    OpenStep* step = run_->schedule.FindStep(StepOf(group));
    if (step == nullptr || step->first_rollout.has_value()) continue;
    step->first_rollout = now;
    // Version `step` is made by the step before; it is not committed yet.
    run_->started_before_commit[step->step] = run_->committed < step->step;
  }
  scorer_.Pump(now, out_);
  for (EvaluationReport& report : run_->evaluations.TakeReports()) {
    job.evaluations.push_back(report);
    out_.Append(job.job_id, now, EvaluationDone{report});
    out_.DoDurably(ReportEvaluation{job.job_id, report});
  }

  const JobSpec::Deadlines& deadlines = run_->spec->deadlines;
  const bool training_over = run_->committed == run_->spec->schedule.steps;
  if (const auto failure = run_->evaluations.Failure(now, training_over)) {
    Fail(*failure, now);
    return;
  }
  if (training_over && run_->evaluations.Done()) {
    Stop(JobState::kSucceeded, "", now);
    return;
  }
  if (const auto expired = scorer_.Expired(now)) {
    Fail(*expired, now);
    return;
  }
  std::string missing = MissingWorkers(*run_->spec);
  if (missing.empty() && fleet_.num_refusing() == fleet_.num_generators()) {
    missing = "no generator that can serve the model (" + fleet_.last_problem() + ")";
  }
  job.reason = missing.empty() ? "" : "waits: " + missing;
  if (missing.empty()) {
    run_->missing_since.reset();
  } else if (!run_->missing_since.has_value()) {
    run_->missing_since = now;
  } else if (now - *run_->missing_since > Millis(deadlines.workers_ms)) {
    Fail(missing + " for deadlines.workers_ms (" + std::to_string(deadlines.workers_ms) + " ms)" +
             kStartWorkers,
         now);
    return;
  }
  if (training_over) return;
  const bool first = run_->committed == 0;
  const uint32_t limit_ms = first ? deadlines.first_step_ms : deadlines.step_ms;
  if (now - run_->committed_at <= Millis(limit_ms)) return;
  const OpenStep* step = run_->schedule.FindStep(run_->committed);
  std::string where = "its training is under way";
  if (!run_->training.has_value() && step != nullptr) {
    where = std::to_string(step->num_settled) + " of " + std::to_string(step->settled.size()) +
            " slots are settled";
    if (!fleet_.last_problem().empty()) where += "; last: " + fleet_.last_problem();
  }
  Fail("step " + std::to_string(run_->committed) + " was not done within deadlines." +
           (first ? "first_step_ms" : "step_ms") + " (" + std::to_string(limit_ms) +
           " ms): " + where,
       now);
}

}  // namespace titan::orchestrator
