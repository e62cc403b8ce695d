// SPDX-License-Identifier: Apache-2.0
//
// Actions: what the engine wants done. The driver appends the facts, then lets an action go once
// the first `after_facts` facts of the engine's life are durable (0: at once). Every action has an
// answer among the events unless it says otherwise. Plain values; shared parts are immutable.
#ifndef TITAN_ORCHESTRATOR_ACTIONS_H_
#define TITAN_ORCHESTRATOR_ACTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/base/ids.h"
#include "orchestrator/dataset.h"
#include "orchestrator/events.h"
#include "orchestrator/facts.h"

namespace titan::orchestrator {

struct StartRun {  // to the trainer; answer: RunStarted
  WorkerName trainer;
  std::string run_id;
  std::shared_ptr<const JobSpec> spec;
  uint32_t deadline_ms = 0;
};
struct LoadVersion {  // answer: VersionLoaded
  WorkerName worker;
  std::string run_id;
  PolicyVersion version = 0;
  bool evaluation = false;
};
struct ReleaseVersion {  // answer: VersionReleased
  WorkerName worker;
  std::string run_id;
  PolicyVersion version = 0;
  bool evaluation = false;
};
struct StartRollout {  // answers: SampleArrived per sample, then RolloutEnded
  WorkerName worker;
  std::string run_id;
  PolicyVersion version = 0;
  bool evaluation = false;
  GroupId group;
  uint32_t attempt = 0;
  uint64_t seed = 0;
  std::shared_ptr<const Dataset> dataset;
  uint32_t data_row = 0;  // prompt
  std::vector<uint32_t> sample_indexes;
  std::vector<SampleId> sample_ids;
  float temperature = 1;
  uint32_t max_new_tokens = 0;
  std::vector<TokenId> stop_token_ids;
  uint64_t priority = 0;
  uint32_t deadline_ms = 0;
};
struct CancelRollouts {  // all streams of this run; each still answers RolloutEnded
  std::string run_id;
};
struct ResetGenerator {  // gives back everything it holds; answer: GeneratorReset
  WorkerName worker;
};
struct ScoreItem {
  SampleId sample;
  uint32_t data_row = 0;
  std::shared_ptr<const Reply> reply;
  bool truncated = false;
};
struct Score {  // answer: ScoreAnswered
  WorkerName reward;
  std::string run_id;
  uint64_t request = 0;
  std::string grader;
  std::string parameters_json;
  std::shared_ptr<const Dataset> dataset;
  std::vector<ScoreItem> items;
  uint32_t deadline_ms = 0;  // of the call; the port may allow more
};
struct PlannedSample {
  GroupId group;
  uint32_t group_index = 0;
  uint32_t sample_index = 0;
  SampleId sample;
  uint32_t data_row = 0;
  std::shared_ptr<const Reply> reply;
  double advantage = 0;
  bool trained = false;
  bool compared = false;
};
struct TrainStep {  // answer: StepTrained
  WorkerName trainer;
  std::string run_id;
  Step step = 0;
  std::string plan_digest;
  uint32_t num_groups_trained = 0;
  PolicyVersion behaviour_version = 0;
  std::shared_ptr<const Dataset> dataset;
  std::vector<PlannedSample> samples;
  uint32_t deadline_ms = 0;
};
struct PinEvaluation {  // to the weight store; answer: EvaluationPinned
  std::string run_id;
  PolicyVersion version = 0;
};
struct UnpinEvaluation {  // answer: EvaluationUnpinned
  std::string run_id;
  PolicyVersion version = 0;
};
struct EndRun {  // to the trainer, if there is one, and then to the weight store; answer: RunEnded
  std::string run_id;
  WorkerName trainer;  // worker_id empty: none
};
// Reports: no answer.
struct ReportJob {
  JobInfo job;
};
struct ReportStep {
  std::string job_id;
  StepReport report;
};
struct ReportEvaluation {
  std::string job_id;
  EvaluationReport report;
};
struct ReportMessage {
  std::string job_id;
  std::string text;
};

struct Action {
  uint64_t after_facts = 0;
  std::variant<StartRun, LoadVersion, ReleaseVersion, StartRollout, CancelRollouts, ResetGenerator,
               Score, TrainStep, PinEvaluation, UnpinEvaluation, EndRun, ReportJob, ReportStep,
               ReportEvaluation, ReportMessage>
      body;
};

struct Actions {
  std::vector<Fact> facts;      // to append, in this order
  std::vector<Action> actions;  // to do, in this order as far as after_facts allows
  bool empty() const { return facts.empty() && actions.empty(); }
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_ACTIONS_H_
