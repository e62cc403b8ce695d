// SPDX-License-Identifier: Apache-2.0
//
// The orchestrator's engine: jobs, the schedule, evaluations, the fleet, deadlines. Events and
// instants in, facts and actions out; no threads, clock, files, sockets, randomized containers
// (scheduling.md). Not thread-safe: one owner, the driver.
//
// Invariants kept here: I1 (a group ends exactly once), I2 (the age of every trained token is
// exactly step - max(0, step - S)), I8 (every wait of a job that began has a deadline and a reason,
// that of the queue a reason).
//
// One job runs at a time; others wait in order of submission. No job begins while a role has no
// worker: the queue waits, however long, and the reason of its first job says for whom. What ends a
// job is stated in its reason.
#ifndef TITAN_ORCHESTRATOR_RUN_ENGINE_H_
#define TITAN_ORCHESTRATOR_RUN_ENGINE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/actions.h"
#include "orchestrator/evaluation.h"
#include "orchestrator/events.h"
#include "orchestrator/fleet.h"
#include "orchestrator/outbox.h"
#include "orchestrator/reports.h"
#include "orchestrator/schedule.h"
#include "orchestrator/scorer.h"

namespace titan::orchestrator {

// A job of an earlier life, as the journal tells it.
struct RestoredJob {
  JobInfo info;
  std::string spec_bytes;
  bool cancelled = false;   // STOPPING because of a cancellation
  std::string next_run_id;  // when it has to start anew
  std::vector<std::string> past_run_ids;
};

// What follows a sentence about workers that are not there.
inline constexpr char kStartWorkers[] =
    "; titanctl status shows who runs and how to start what is missing, titanctl logs why one "
    "ended; then submit the job again";

class RunEngine {
 public:
  RunEngine() = default;
  RunEngine(const RunEngine&) = delete;
  RunEngine& operator=(const RunEngine&) = delete;

  // Jobs of an earlier life, in order of submission. Those that had not begun are queued again in
  // that order, before every new one, and run once their JobPrepared came; one that was STARTING
  // gets its next_run_id. Those that had begun end, FAILED unless they were being cancelled. The
  // runs that may exist end at the weight store, and once more at the first trainer that joins: it
  // may have begun one after the store was asked. Call before the first event.
  void Restore(std::vector<RestoredJob> jobs, Instant now);

  void Handle(const Event& event, Instant now);
  // Deadlines and retries; call it at least every 100 ms.
  void Tick(Instant now);
  Actions TakeActions() { return out_.Take(); }

  const std::map<std::string, JobInfo>& jobs() const { return jobs_; }
  // For people: what a generator does; empty: not known.
  std::string DescribeGenerator(const std::string& worker_id) const {
    return fleet_.Describe(worker_id);
  }

  // For tests: counters of harmless oddities.
  struct Counters {
    uint64_t duplicate_samples = 0;
    uint64_t samples_reissued = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  enum class Phase { kStarting, kRunning, kStopping };
  struct Run {
    Run(std::shared_ptr<const JobSpec> s, LogicalSchedule sch, Evaluations eval)
        : spec(std::move(s)), schedule(std::move(sch)), evaluations(std::move(eval)) {}

    JobInfo* job = nullptr;
    std::shared_ptr<const JobSpec> spec;
    std::shared_ptr<const Dataset> dataset;
    std::vector<TokenId> stop_token_ids;
    LogicalSchedule schedule;
    Evaluations evaluations;
    Phase phase = Phase::kStarting;
    Instant phase_since;
    WorkerName trainer;
    bool trainer_alive = false;

    PolicyVersion committed = 0;
    Instant committed_at;              // when `committed` became known
    std::optional<StepPlan> training;  // the step in flight
    Instant training_since;
    std::map<Step, bool> started_before_commit;
    std::optional<Instant> missing_since;  // no generator, or no reward service
    // Groups without a trainable one since the last, in order of steps, and why.
    uint64_t untrainable_in_a_row = 0;

    JobState final_state = JobState::kSucceeded;  // when stopping
    std::string final_reason;
    bool end_answered = false;
  };

  // Events.
  void On(const SubmitJob& event, Instant now);
  void On(const JobPrepared& event, Instant now);
  void On(const CancelJob& event, Instant now);
  void On(const WorkerReady& event, Instant now);
  void On(const WorkerLost& event, Instant now);
  void On(const WorkerSilent& event, Instant now);
  void On(const RunStarted& event, Instant now);
  void On(const VersionLoaded& event, Instant now);
  void On(const VersionReleased& event, Instant now);
  void On(const GeneratorReset& event, Instant now);
  void On(const SampleArrived& event, Instant now);
  void On(const RolloutEnded& event, Instant now);
  void On(const ScoreAnswered& event, Instant now);
  void On(const StepTrained& event, Instant now);
  void On(const EvaluationPinned& event, Instant now);
  void On(const EvaluationUnpinned& event, Instant now);
  void On(const RunEnded& event, Instant now);

  // Everything that may be due, after an event or a tick.
  void Advance(Instant now);
  void BeginNextJob(Instant now);
  // Whether the first job of the queue may begin. Says what it waits for, and ends it when nobody
  // but a service with its grader is missing for too long.
  bool MayBegin(Instant now);
  void AdvanceStart(Instant now);
  void AdvanceRunning(Instant now);
  void AdvanceStopping(Instant now);
  // What a job lacks in workers, and how it was lost; empty: nothing.
  std::string MissingWorkers(const JobSpec& spec) const;
  void RestoreUnfinished(const RestoredJob& restored, JobInfo& job, Instant now);
  // "in step 3 (why); what to do": of a worker that the run cannot do without.
  std::string WhereLost(const WorkerLost& event) const;

  void OpenSteps(Instant now);
  void AdmitGroup(const Group& group, Instant now);
  void StartTraining(Instant now);
  void ApplyScore(const Scorer::Scored& scored, Instant now);
  StepReport MakeReport(const OpenStep& step, const StepPlan& plan, const TrainResult& result,
                        Instant now) const;
  bool IsRunning() const { return run_.has_value() && run_->phase == Phase::kRunning; }
  bool IsCurrent(const std::string& run_id) const {
    return run_.has_value() && run_->job->run_id == run_id;
  }

  // Starts to end the run; open groups are closed as cancelled.
  void Stop(JobState final_state, const std::string& reason, Instant now);
  void Fail(const std::string& reason, Instant now) { Stop(JobState::kFailed, reason, now); }
  void SetState(JobInfo& job, JobState state, const std::string& reason, Instant now);
  void Tell(const std::string& job_id, const std::string& whole, Instant now);
  // To the watchers of the running job, if there is one.
  void Message(const std::string& text, Instant now);

  Outbox out_;
  std::map<std::string, JobInfo> jobs_;     // by job id
  std::deque<SubmitJob> queue_;             // without a dataset: waits for its JobPrepared
  std::string told_to_wait_;                // the job of the queue that was told what it waits for
  std::optional<Instant> no_grader_since_;  // only a grader is missing for the first of the queue
  std::optional<Run> run_;
  Fleet fleet_;
  Scorer scorer_;
  std::map<std::string, WorkerName> trainers_;  // by worker id
  std::map<std::string, WorkerName> weight_stores_;
  std::vector<std::string> past_runs_;           // of an earlier life, until a trainer joins
  std::map<WorkerRole, std::string> last_lost_;  // how the last one of a role was lost
  Counters counters_;
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_RUN_ENGINE_H_
