// SPDX-License-Identifier: Apache-2.0
//
// What the driver needs from the outside; implemented in services/orchestrator by gRPC and in tests
// by fakes. Every call returns at once. Answers come as events through Driver::Deliver on the
// driver's own strand, exactly one an action (StartRollout: one a sample, then RolloutEnded), with
// the failure in their status; every call has a deadline. Ports must not deliver from inside the
// call.
#ifndef TITAN_ORCHESTRATOR_PORTS_H_
#define TITAN_ORCHESTRATOR_PORTS_H_

#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "orchestrator/actions.h"

namespace titan::orchestrator {

class GeneratorPort {
 public:
  virtual ~GeneratorPort() = default;
  virtual void Load(const LoadVersion& action) = 0;
  virtual void Release(const ReleaseVersion& action) = 0;
  virtual void Start(const StartRollout& action) = 0;
  virtual void Cancel(const CancelRollouts& action) = 0;
  virtual void Reset(const ResetGenerator& action) = 0;
};

class TrainerPort {
 public:
  virtual ~TrainerPort() = default;
  virtual void Start(const StartRun& action) = 0;
  virtual void Train(const TrainStep& action) = 0;
  // Cancels what the run does at the trainer and frees it; then `done`. Failures do not matter: the
  // run ends anyway.
  virtual void End(const EndRun& action, std::function<void()> done) = 0;
};

class RewardPort {
 public:
  virtual ~RewardPort() = default;
  virtual void Send(const Score& action) = 0;
};

class WeightStorePort {
 public:
  virtual ~WeightStorePort() = default;
  virtual void Pin(const PinEvaluation& action) = 0;
  virtual void Unpin(const UnpinEvaluation& action) = 0;
  // Tries again while the store does not answer; then `done`.
  virtual void End(const std::string& run_id, std::function<void()> done) = 0;
};

// The journal as the driver sees it: one commit at a time, answered on the driver's strand.
class JournalPort {
 public:
  virtual ~JournalPort() = default;
  virtual void Commit(std::vector<Fact> facts, std::function<void(Status)> done) = 0;
};

// Who is told about jobs: watchers, the log. Called on the driver's strand, once the facts are
// durable.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnJob(const JobInfo& job) = 0;
  virtual void OnStep(const std::string& job_id, const StepReport& report) = 0;
  virtual void OnEvaluation(const std::string& job_id, const EvaluationReport& report) = 0;
  virtual void OnMessage(const std::string& job_id, const std::string& text) = 0;
  // The journal failed: nothing that needs it can go on; the daemon should end.
  virtual void OnJournalFailure(const Status& status) = 0;
};

struct Ports {  // all must outlive the driver
  GeneratorPort& generators;
  TrainerPort& trainer;
  RewardPort& rewards;
  WeightStorePort& weight_store;
  JournalPort& journal;
  Observer& observer;
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_PORTS_H_
