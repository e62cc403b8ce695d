// SPDX-License-Identifier: Apache-2.0
//
// Events: everything that reaches the engine from outside. The driver makes them of RPC results,
// worker transitions and commands. Answers carry what the action asked with; late and doubled ones
// are harmless.
#ifndef TITAN_ORCHESTRATOR_EVENTS_H_
#define TITAN_ORCHESTRATOR_EVENTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "orchestrator/dataset.h"
#include "orchestrator/facts.h"
#include "orchestrator/job_spec.h"

namespace titan::orchestrator {

enum class WorkerRole : uint32_t { kGenerator = 1, kTrainer = 2, kWeightStore = 3, kReward = 4 };

// One life of a worker process.
struct WorkerName {
  std::string worker_id;
  std::string incarnation;
  friend auto operator<=>(const WorkerName&, const WorkerName&) = default;
};

struct SubmitJob {
  std::string job_id;
  std::string run_id;
  std::string request_id;
  std::shared_ptr<const JobSpec> spec;  // checked
  std::string spec_bytes;
  std::string data_digest;
  std::string spec_digest;                 // of the spec as it was sent
  std::shared_ptr<const Dataset> dataset;  // prompts tokenized
  std::vector<TokenId> stop_token_ids;
};
// The data of a job that an earlier life queued was read again.
struct JobPrepared {
  std::string job_id;
  Status status;  // UNAVAILABLE: it is tried again; another failure ends the job
  std::shared_ptr<const Dataset> dataset;
  std::vector<TokenId> stop_token_ids;
};
struct CancelJob {
  std::string job_id;
  std::string request_id;
  std::string reason;
};
struct WorkerReady {
  WorkerName name;
  WorkerRole role = WorkerRole::kGenerator;
  uint32_t max_versions = 0;           // generators
  uint32_t max_running_sequences = 0;  // generators
  std::vector<std::string> graders;    // reward services
};
struct WorkerLost {
  WorkerName name;
  std::string reason;
};
// A worker that registered and does not answer what it is asked before it may join.
struct WorkerSilent {
  WorkerName name;
  WorkerRole role = WorkerRole::kReward;
  std::string reason;
};
// Answer to StartRun.
struct RunStarted {
  std::string run_id;
  Status status;
  std::string weights_digest;
};
// Answer to LoadVersion and ReleaseVersion.
struct VersionLoaded {
  WorkerName worker;
  std::string run_id;
  PolicyVersion version = 0;
  bool evaluation = false;
  Status status;
};
struct VersionReleased {
  WorkerName worker;
  std::string run_id;
  PolicyVersion version = 0;
  bool evaluation = false;
  Status status;  // a failure: it may still be held
};
// Answer to ResetGenerator.
struct GeneratorReset {
  WorkerName worker;
  Status status;
};
struct VersionSpan {
  PolicyVersion version = 0;
  uint32_t num_tokens = 0;
};
// One finished sample of a StartRollout.
struct SampleArrived {
  WorkerName worker;
  std::string run_id;
  GroupId group;
  uint32_t attempt = 0;
  uint32_t sample_index = 0;
  std::shared_ptr<const Reply> reply;
  FinishReason finish = FinishReason::kStop;
  std::vector<VersionSpan> spans;
  uint32_t sequences_running_max = 0;
  uint64_t batch_fingerprint = 0;
};
// The stream of a StartRollout is over; samples that did not arrive are issued again.
struct RolloutEnded {
  WorkerName worker;
  std::string run_id;
  GroupId group;
  uint32_t attempt = 0;
  Status status;
};
struct ScoreOutcome {
  enum class Kind { kValue, kModelFault, kInfraFault } kind = Kind::kInfraFault;
  double value = 0;
  std::map<std::string, double> components;
  std::string reason;  // of faults
};
// Answer to Score; results are parallel to its items when the status is OK.
struct ScoreAnswered {
  std::string run_id;
  uint64_t request = 0;
  Status status;
  std::string grader_version;
  std::vector<ScoreOutcome> results;
};
struct TrainResult {
  PolicyVersion version = 0;
  std::string weights_digest;
  bool updated = false;
  double loss = 0, gradient_norm = 0, clip_fraction = 0, ratio_max = 0, learning_rate = 0;
  uint64_t tokens_trained = 0;
  uint32_t sample_tokens_max = 0;
  ParityTotals parity;
  std::string first_difference;  // for people; empty: none
  uint32_t samples_per_pack_min = 0;
  double parity_forward_seconds = 0, forward_seconds = 0, backward_seconds = 0;
  double optimizer_seconds = 0, publish_seconds = 0;
};
// Answer to TrainStep.
struct StepTrained {
  std::string run_id;
  Step step = 0;
  Status status;
  TrainResult result;
};
// Answer to PinEvaluation and UnpinEvaluation.
struct EvaluationPinned {
  std::string run_id;
  PolicyVersion version = 0;
  Status status;
};
struct EvaluationUnpinned {
  std::string run_id;
  PolicyVersion version = 0;
  Status status;
};
// Answer to EndRun.
struct RunEnded {
  std::string run_id;
};

using Event = std::variant<SubmitJob, JobPrepared, CancelJob, WorkerReady, WorkerLost, WorkerSilent,
                           RunStarted, VersionLoaded, VersionReleased, GeneratorReset,
                           SampleArrived, RolloutEnded, ScoreAnswered, StepTrained,
                           EvaluationPinned, EvaluationUnpinned, RunEnded>;

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_EVENTS_H_
