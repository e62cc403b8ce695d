// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/metrics.h"

namespace titan::orchestrator {

OrchestratorMetrics::OrchestratorMetrics(runtime::Metrics& m)
    : steps_(m.AddCounter("titan_orchestrator_steps_total", "Training steps done")),
      samples_(m.AddCounter("titan_orchestrator_samples_total", "Samples of finished steps")),
      tokens_generated_(m.AddCounter("titan_orchestrator_tokens_generated_total",
                                     "Reply tokens of finished steps")),
      tokens_trained_(
          m.AddCounter("titan_orchestrator_tokens_trained_total", "Reply tokens trained")),
      tokens_compared_(m.AddCounter("titan_orchestrator_parity_tokens_compared_total",
                                    "Tokens whose log-prob of trainer and generator was compared")),
      tokens_differing_(m.AddCounter("titan_orchestrator_parity_tokens_differing_total",
                                     "Compared tokens whose log-probs differ; must stay 0")),
      groups_untrainable_(m.AddCounter("titan_orchestrator_groups_untrainable_total",
                                       "Groups of finished steps that could not be trained")),
      reward_mean_(m.AddGauge("titan_orchestrator_reward_mean_ratio",
                              "Mean reward of the last finished step")),
      accuracy_(m.AddGauge("titan_orchestrator_heldout_accuracy_ratio",
                           "Accuracy of the last evaluation")),
      held_actions_(
          m.AddGauge("titan_orchestrator_held_actions_count", "Actions that wait for the journal")),
      generators_(m.AddGauge("titan_orchestrator_workers_count", "Registered workers",
                             {{"role", "generator"}})),
      trainers_(m.AddGauge("titan_orchestrator_workers_count", "Registered workers",
                           {{"role", "trainer"}})),
      rewards_(m.AddGauge("titan_orchestrator_workers_count", "Registered workers",
                          {{"role", "reward"}})),
      step_seconds_(m.AddHistogram("titan_orchestrator_step_seconds",
                                   "Wall time from one version to the next",
                                   runtime::SecondsBuckets())),
      wait_seconds_(m.AddHistogram("titan_orchestrator_trainer_wait_seconds",
                                   "Time in which the trainer waited for the samples of a step",
                                   runtime::SecondsBuckets())),
      commit_seconds_(m.AddHistogram("titan_orchestrator_journal_commit_seconds",
                                     "Duration of a commit of the journal",
                                     runtime::SecondsBuckets())),
      facts_(m.AddCounter("titan_orchestrator_journal_facts_total", "Facts made durable")),
      succeeded_(m.AddCounter("titan_orchestrator_jobs_ended_total", "Jobs that ended",
                              {{"state", "succeeded"}})),
      failed_(m.AddCounter("titan_orchestrator_jobs_ended_total", "Jobs that ended",
                           {{"state", "failed"}})),
      cancelled_(m.AddCounter("titan_orchestrator_jobs_ended_total", "Jobs that ended",
                              {{"state", "cancelled"}})) {}

void OrchestratorMetrics::OnStep(const StepReport& report) {
  steps_.Add();
  samples_.Add(report.samples);
  tokens_generated_.Add(static_cast<double>(report.tokens_generated));
  tokens_trained_.Add(static_cast<double>(report.tokens_trained));
  tokens_compared_.Add(static_cast<double>(report.parity.tokens_compared));
  tokens_differing_.Add(static_cast<double>(report.parity.tokens_differing));
  groups_untrainable_.Add(report.groups_untrainable);
  reward_mean_.Set(report.reward_mean);
  step_seconds_.Observe(report.phases.wall);
  wait_seconds_.Observe(report.phases.wait_for_samples);
}

void OrchestratorMetrics::OnEvaluation(const EvaluationReport& report) {
  if (report.skipped_reason.empty()) accuracy_.Set(report.accuracy);
}

void OrchestratorMetrics::OnJobEnded(JobState state) {
  if (state == JobState::kSucceeded) succeeded_.Add();
  if (state == JobState::kFailed) failed_.Add();
  if (state == JobState::kCancelled) cancelled_.Add();
}

void OrchestratorMetrics::OnCommit(size_t num_facts, double seconds) {
  facts_.Add(static_cast<double>(num_facts));
  commit_seconds_.Observe(seconds);
}

void OrchestratorMetrics::OnTick(const WorkerRegistry& workers, size_t held_actions) {
  double generators = 0, trainers = 0, rewards = 0;
  for (const auto& [id, record] : workers.workers()) {
    generators += record.ready.role == WorkerRole::kGenerator;
    trainers += record.ready.role == WorkerRole::kTrainer;
    rewards += record.ready.role == WorkerRole::kReward;
  }
  generators_.Set(generators);
  trainers_.Set(trainers);
  rewards_.Set(rewards);
  held_actions_.Set(static_cast<double>(held_actions));
}

}  // namespace titan::orchestrator
