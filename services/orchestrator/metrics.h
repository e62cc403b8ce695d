// SPDX-License-Identifier: Apache-2.0
//
// The metrics of titan-orchestrator. Any thread.
#ifndef TITAN_SERVICES_ORCHESTRATOR_METRICS_H_
#define TITAN_SERVICES_ORCHESTRATOR_METRICS_H_

#include "core/runtime/metrics.h"
#include "orchestrator/reports.h"
#include "orchestrator/worker_registry.h"

namespace titan::orchestrator {

class OrchestratorMetrics {
 public:
  explicit OrchestratorMetrics(runtime::Metrics& metrics);

  void OnStep(const StepReport& report);
  void OnEvaluation(const EvaluationReport& report);
  void OnJobEnded(JobState state);
  void OnCommit(size_t num_facts, double seconds);
  void OnTick(const WorkerRegistry& workers, size_t held_actions);

 private:
  runtime::Counter steps_, samples_, tokens_generated_, tokens_trained_;
  runtime::Counter tokens_compared_, tokens_differing_, groups_untrainable_;
  runtime::Gauge reward_mean_, accuracy_, held_actions_;
  runtime::Gauge generators_, trainers_, rewards_;
  runtime::Histogram step_seconds_, wait_seconds_, commit_seconds_;
  runtime::Counter facts_;
  runtime::Counter succeeded_, failed_, cancelled_;
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_METRICS_H_
