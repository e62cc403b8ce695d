// SPDX-License-Identifier: Apache-2.0
//
// Jobs, workers and phases. What happens inside a running job: run_engine_steps.cc.
#include "orchestrator/run_engine.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/nearest_name.h"
#include "orchestrator/words.h"

namespace titan::orchestrator {
namespace {

// How long the end of a run may take before it is given up and the job ends anyway.
constexpr uint64_t kStopMs = 15000;

}  // namespace

void RunEngine::Restore(std::vector<RestoredJob> jobs, Instant now) {
  TITAN_CHECK(jobs_.empty());
  for (const RestoredJob& restored : jobs) {
    JobInfo& job = jobs_[restored.info.job_id] = restored.info;
    past_runs_.insert(past_runs_.end(), restored.past_run_ids.begin(), restored.past_run_ids.end());
    if (!IsFinal(job.state)) RestoreUnfinished(restored, job, now);
  }
  for (const std::string& run_id : past_runs_) {
    out_.DoDurably(EndRun{run_id, WorkerName{}});
  }
}

void RunEngine::RestoreUnfinished(const RestoredJob& restored, JobInfo& job, Instant now) {
  const std::string old_run_id = job.run_id;
  const std::string stopped = "the orchestrator was stopped or died while ";
  switch (job.state) {
    case JobState::kStarting:
      // The run may have its first version at the weight store, and a run cannot begin twice.
      job.run_id = restored.next_run_id;
      out_.Append(job.job_id, now,
                  JobSubmitted{restored.spec_bytes, job.request_id, job.run_id, job.data_digest,
                               job.spec_digest});
      out_.Append(job.job_id, now, StateChanged{JobState::kQueued, ""});
      job.state = JobState::kQueued;
      job.reason.clear();
      out_.DoDurably(ReportJob{job});
      past_runs_.push_back(old_run_id);
      [[fallthrough]];
    case JobState::kQueued: {
      SubmitJob waiting;
      waiting.job_id = job.job_id;
      waiting.run_id = job.run_id;
      waiting.request_id = job.request_id;
      waiting.spec = job.spec;
      waiting.spec_bytes = restored.spec_bytes;
      queue_.push_back(std::move(waiting));
      job.reason = "waits until its data and model are read again after a restart";
      Tell(job.job_id, "the orchestrator was started again; the job keeps its place in the queue",
           now);
      return;
    }
    case JobState::kStopping:
      if (restored.cancelled) {
        SetState(job, JobState::kCancelled, std::string(job.reason), now);
      } else if (!job.reason.empty()) {
        SetState(job, JobState::kFailed, std::string(job.reason), now);
      } else {
        SetState(job, JobState::kFailed,
                 stopped + "the job ended; every step was done, and titanctl weights ls " +
                     job.job_id + " shows whether its last version was kept",
                 now);
      }
      break;
    default:
      SetState(job, JobState::kFailed,
               stopped + "the job ran (" + std::to_string(job.steps_done) + " of " +
                   std::to_string(job.spec->schedule.steps) +
                   " steps were done); titanctl weights ls " + job.job_id +
                   " shows whether its newest version was kept; submit it again: this version does "
                   "not resume jobs",
               now);
  }
  past_runs_.push_back(old_run_id);
}

void RunEngine::Handle(const Event& event, Instant now) {
  std::visit([&](const auto& e) { On(e, now); }, event);
  Advance(now);
}

void RunEngine::Tick(Instant now) { Advance(now); }

void RunEngine::SetState(JobInfo& job, JobState state, const std::string& reason, Instant now) {
  job.state = state;
  job.reason = Shortened(reason, kMaxTextBytes);
  if (state == JobState::kQueued) job.submitted_unix_ms = UnixMs(now);
  if (state == JobState::kRunning) job.running_unix_ms = UnixMs(now);
  if (IsFinal(state)) job.ended_unix_ms = UnixMs(now);
  out_.Append(job.job_id, now, StateChanged{state, job.reason});
  out_.DoDurably(ReportJob{job});
}

void RunEngine::Tell(const std::string& job_id, const std::string& whole, Instant now) {
  const std::string text = Shortened(whole, kMaxTextBytes);
  out_.Append(job_id, now, MessageTold{text});
  out_.DoDurably(ReportMessage{job_id, text});
}

void RunEngine::Message(const std::string& text, Instant now) {
  if (run_.has_value()) Tell(run_->job->job_id, text, now);
}

void RunEngine::On(const SubmitJob& event, Instant now) {
  TITAN_CHECK(jobs_.count(event.job_id) == 0);
  JobInfo& job = jobs_[event.job_id];
  job.job_id = event.job_id;
  job.run_id = event.run_id;
  job.request_id = event.request_id;
  job.data_digest = event.data_digest;
  job.spec_digest = event.spec_digest;
  job.spec = event.spec;
  out_.Append(job.job_id, now,
              JobSubmitted{event.spec_bytes, event.request_id, event.run_id, event.data_digest,
                           event.spec_digest});
  SetState(job, JobState::kQueued, "", now);
  queue_.push_back(event);
}

void RunEngine::On(const JobPrepared& event, Instant now) {
  const auto waiting = std::find_if(queue_.begin(), queue_.end(), [&](const SubmitJob& queued) {
    return queued.job_id == event.job_id;
  });
  if (waiting == queue_.end() || waiting->dataset != nullptr) return;  // cancelled meanwhile
  if (event.status.code() == StatusCode::kUnavailable) {
    jobs_.at(event.job_id).reason = Shortened("waits: " + WordsOf(event.status), kMaxTextBytes);
    return;
  }
  if (event.status.ok()) {
    waiting->dataset = event.dataset;
    waiting->stop_token_ids = event.stop_token_ids;
    jobs_.at(event.job_id).reason.clear();
    return;
  }
  queue_.erase(waiting);
  SetState(jobs_.at(event.job_id), JobState::kFailed,
           "the orchestrator was started again and could not prepare the job once more: " +
               WordsOf(event.status) + "; mend it and submit the job again",
           now);
}

void RunEngine::On(const CancelJob& event, Instant now) {
  const auto found = jobs_.find(event.job_id);
  if (found == jobs_.end() || IsFinal(found->second.state)) return;
  out_.Append(event.job_id, now,
              CommandGiven{"cancel", event.request_id, Shortened(event.reason, kMaxTextBytes)});
  if (run_.has_value() && run_->job == &found->second) {
    if (run_->phase != Phase::kStopping) Stop(JobState::kCancelled, event.reason, now);
    return;
  }
  std::erase_if(queue_, [&](const SubmitJob& queued) { return queued.job_id == event.job_id; });
  SetState(found->second, JobState::kCancelled, event.reason, now);
}

void RunEngine::On(const WorkerReady& event, Instant now) {
  last_lost_.erase(event.role);
  switch (event.role) {
    case WorkerRole::kGenerator:
      if (!fleet_.Join(event)) return;
      break;
    case WorkerRole::kReward:
      scorer_.Join(event);
      break;
    case WorkerRole::kTrainer:
      trainers_[event.name.worker_id] = event.name;
      for (const std::string& run_id : std::exchange(past_runs_, {})) {
        out_.DoDurably(EndRun{run_id, event.name});
      }
      break;
    case WorkerRole::kWeightStore:
      weight_stores_[event.name.worker_id] = event.name;
      break;
  }
  Message(event.name.worker_id + " joined", now);
}

void RunEngine::On(const WorkerSilent& event, Instant) {
  if (event.role == WorkerRole::kReward) scorer_.OnSilent(event);
}

void RunEngine::On(const WorkerLost& event, Instant now) {
  const std::string& id = event.name.worker_id;
  const std::string lost = id + " was lost: " + Shortened(event.reason);
  size_t reissued = 0;
  if (fleet_.Leave(event.name, &reissued)) {
    last_lost_[WorkerRole::kGenerator] = lost;
    counters_.samples_reissued += reissued;
    Message(
        id + " was lost (" + Shortened(event.reason) + ")" +
            (reissued == 0 ? "" : "; " + std::to_string(reissued) + " samples are issued again"),
        now);
    return;
  }
  if (scorer_.Leave(event.name, now)) {
    last_lost_[WorkerRole::kReward] = lost;
    Message(id + " was lost (" + Shortened(event.reason) + "); its items are sent again", now);
    return;
  }
  const auto trainer = trainers_.find(id);
  if (trainer != trainers_.end() && trainer->second == event.name) {
    trainers_.erase(trainer);
    last_lost_[WorkerRole::kTrainer] = lost;
    if (run_.has_value() && run_->trainer == event.name && run_->trainer_alive) {
      run_->trainer_alive = false;
      if (run_->phase != Phase::kStopping) {
        Fail("the trainer (worker " + id + ") was lost " + WhereLost(event), now);
      }
    }
    return;
  }
  const auto store = weight_stores_.find(id);
  if (store != weight_stores_.end() && store->second == event.name) {
    weight_stores_.erase(store);
    last_lost_[WorkerRole::kWeightStore] = lost;
    if (run_.has_value() && run_->phase != Phase::kStopping) {
      Fail("the weight store (worker " + id + ") was lost " + WhereLost(event), now);
    }
  }
}

std::string RunEngine::WhereLost(const WorkerLost& event) const {
  const Step steps = run_->spec->schedule.steps;
  std::string where = "before step " + std::to_string(run_->committed) + " could be trained";
  if (run_->phase == Phase::kStarting) {
    where = "while the model was loaded";
  } else if (run_->training.has_value()) {
    where = "in step " + std::to_string(run_->training->step);
  } else if (run_->committed == steps) {
    where = "after the last step";
  }
  return where + " (" + Shortened(event.reason) + "); titanctl logs " + event.name.worker_id +
         " shows its last words; start the cluster anew (titanctl status says how) and submit the "
         "job again";
}

void RunEngine::Advance(Instant now) {
  fleet_.PumpResets(now, out_);
  if (!run_.has_value()) BeginNextJob(now);
  if (!run_.has_value()) return;
  switch (run_->phase) {
    case Phase::kStarting:
      AdvanceStart(now);
      break;
    case Phase::kRunning:
      AdvanceRunning(now);
      break;
    case Phase::kStopping:
      break;
  }
  if (run_.has_value() && run_->phase == Phase::kStopping) AdvanceStopping(now);
}

void RunEngine::BeginNextJob(Instant now) {
  if (queue_.empty() || queue_.front().dataset == nullptr || !MayBegin(now)) return;
  const SubmitJob submit = std::move(queue_.front());
  queue_.pop_front();
  JobInfo& job = jobs_.at(submit.job_id);
  auto order = DataOrder::Create(*submit.dataset, submit.spec->seed, submit.spec->data.held_out);
  if (!order.ok()) {  // checked at submission; kept as an error of the job, not of the daemon
    SetState(job, JobState::kFailed, MessageOf(order.status()), now);
    return;
  }
  Evaluations evaluations(submit.spec, submit.run_id, order->held_out_rows());
  run_.emplace(submit.spec, LogicalSchedule(submit.spec, *std::move(order)),
               std::move(evaluations));
  run_->job = &job;
  run_->dataset = submit.dataset;
  run_->stop_token_ids = submit.stop_token_ids;
  run_->phase_since = now;
  run_->trainer = trainers_.begin()->second;
  run_->trainer_alive = true;
  fleet_.Begin({job.job_id, job.run_id, submit.spec->seed, submit.dataset, submit.stop_token_ids,
                submit.spec->deadlines.first_step_ms, submit.spec->deadlines.step_ms});
  scorer_.Begin(job.run_id, submit.spec, submit.dataset);
  SetState(job, JobState::kStarting, "", now);
  out_.DoDurably(
      StartRun{run_->trainer, job.run_id, run_->spec, run_->spec->deadlines.first_step_ms});
}

bool RunEngine::MayBegin(Instant now) {
  const SubmitJob& first = queue_.front();
  JobInfo& job = jobs_.at(first.job_id);
  const std::string missing = MissingWorkers(*first.spec);
  if (missing.empty()) {
    no_grader_since_.reset();
    return true;
  }
  job.reason = "waits: " + missing;
  if (std::exchange(told_to_wait_, job.job_id) != job.job_id) {
    no_grader_since_.reset();  // of the first of the queue before
    Tell(job.job_id,
         job.reason + "; titanctl status shows who runs and how to start what is missing", now);
  }
  const bool nobody = trainers_.empty() || weight_stores_.empty() || fleet_.num_generators() == 0 ||
                      scorer_.graders().empty();
  if (nobody) {  // no job could begin: all keep their places
    no_grader_since_.reset();
    return false;
  }
  if (!no_grader_since_.has_value()) no_grader_since_ = now;
  const uint32_t limit_ms = first.spec->deadlines.workers_ms;
  if (now - *no_grader_since_ <= Millis(limit_ms)) return false;
  no_grader_since_.reset();
  queue_.pop_front();
  SetState(job, JobState::kFailed,
           missing + " within deadlines.workers_ms (" + std::to_string(limit_ms) + " ms)" +
               kStartWorkers,
           now);
  return false;
}

std::string RunEngine::MissingWorkers(const JobSpec& spec) const {
  std::string missing;
  const auto lost = [&](WorkerRole role) {
    const auto last = last_lost_.find(role);
    return last == last_lost_.end() ? "" : " (" + last->second + ")";
  };
  const auto add = [&](const std::string& what) {
    missing += (missing.empty() ? "no " : ", no ") + what;
  };
  if (trainers_.empty()) add("trainer" + lost(WorkerRole::kTrainer));
  if (weight_stores_.empty()) add("weight store" + lost(WorkerRole::kWeightStore));
  if (fleet_.num_generators() == 0) add("generator" + lost(WorkerRole::kGenerator));
  const std::string& grader = spec.reward.grader;
  if (!scorer_.HasGrader(grader)) {
    add("reward service with the grader " + grader + lost(WorkerRole::kReward));
    const std::vector<std::string> served = scorer_.graders();
    if (const std::string nearest = NearestName(grader, served); !nearest.empty()) {
      missing += " (did you mean " + nearest + "?)";
    } else if (!served.empty()) {
      missing += " (there is:";
      for (const std::string& name : served) missing += " " + name;
      missing += ")";
    }
    if (const std::string silent = scorer_.Silent(); !silent.empty()) {
      missing += " (" + silent + ")";
    }
  }
  return missing;
}

void RunEngine::AdvanceStart(Instant now) {
  const uint32_t limit_ms = run_->spec->deadlines.first_step_ms;
  if (now - run_->phase_since <= Millis(limit_ms)) return;
  Fail("the trainer did not load the model within deadlines.first_step_ms (" +
           std::to_string(limit_ms) + " ms)",
       now);
}

void RunEngine::On(const RunStarted& event, Instant now) {
  if (!IsCurrent(event.run_id) || run_->phase != Phase::kStarting) return;
  if (!event.status.ok()) {
    Fail("the trainer (worker " + run_->trainer.worker_id +
             ") could not start the run: " + WordsOf(event.status),
         now);
    return;
  }
  run_->phase = Phase::kRunning;
  run_->phase_since = run_->committed_at = now;
  run_->evaluations.Begin(now);
  SetState(*run_->job, JobState::kRunning, "", now);
  Message("version 0 is published, weights digest " + Shortened(event.weights_digest), now);
  run_->evaluations.OnCommitted(0);
  OpenSteps(now);
}

void RunEngine::Stop(JobState final_state, const std::string& reason, Instant now) {
  TITAN_CHECK(run_.has_value() && run_->phase != Phase::kStopping);
  // I1: what is admitted and neither trained nor untrainable ends here.
  for (const GroupId id : run_->schedule.UnfinishedGroups()) {
    out_.Append(run_->job->job_id, now, GroupClosed{id, false, "cancelled"});
  }
  run_->phase = Phase::kStopping;
  run_->phase_since = now;
  run_->final_state = final_state;
  run_->final_reason = reason;
  SetState(*run_->job, JobState::kStopping, reason, now);
  fleet_.Stop();
  scorer_.Stop();
  out_.Do(CancelRollouts{run_->job->run_id});
  for (const PolicyVersion pinned : run_->evaluations.pinned()) {
    out_.Do(UnpinEvaluation{run_->job->run_id, pinned});
  }
  out_.DoDurably(EndRun{run_->job->run_id, run_->trainer_alive ? run_->trainer : WorkerName{}});
}

void RunEngine::AdvanceStopping(Instant now) {
  fleet_.Pump(now, out_);
  const bool late = now - run_->phase_since > Millis(kStopMs);
  if (!late && !(run_->end_answered && fleet_.Idle())) return;
  if (late) {
    fleet_.Abandon(now);
    fleet_.PumpResets(now, out_);
  }
  JobInfo& job = *run_->job;
  const JobState state = run_->final_state;
  const std::string reason = run_->final_reason;
  run_.reset();
  SetState(job, state, reason, now);
}

void RunEngine::On(const RunEnded& event, Instant now) {
  if (IsCurrent(event.run_id) && run_->phase == Phase::kStopping) run_->end_answered = true;
}

}  // namespace titan::orchestrator
