// SPDX-License-Identifier: Apache-2.0
//
// Evaluations of a run: greedy replies to the held-out rows at version 0, every k versions, and the
// last one. The version is pinned in an evaluation slot of the weight store, so training never
// waits; a version that was retired before a slot was free is skipped with that reason. One
// evaluation runs at a time, oldest first; as many versions as there are slots (evaluation.slots)
// are pinned, so that the next ones are there when it is their turn. Not thread-safe; no I/O.
//
//   pinning -> pinned -> running -> releasing (generators give it back) -> unpinning -> next
#ifndef TITAN_ORCHESTRATOR_EVALUATION_H_
#define TITAN_ORCHESTRATOR_EVALUATION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/events.h"
#include "orchestrator/fleet.h"
#include "orchestrator/outbox.h"
#include "orchestrator/scorer.h"

namespace titan::orchestrator {

class Evaluations {
 public:
  // rows: the held-out rows, in their order; empty: nothing is ever evaluated.
  Evaluations(std::shared_ptr<const JobSpec> spec, std::string run_id, std::vector<uint32_t> rows);

  // Queues the version if it is due.
  void OnCommitted(PolicyVersion version);
  void OnPinned(const EvaluationPinned& event, Fleet& fleet, Instant now);
  void OnUnpinned(const EvaluationUnpinned& event, Instant now);
  // A reply that the fleet accepted; it goes to the scorer.
  void OnSample(const SampleArrived& event, Scorer& scorer, Instant now);
  void OnScored(const Scorer::Scored& scored, Instant now);
  void Pump(Fleet& fleet, Instant now, Outbox& out);

  // Finished or skipped evaluations since the last call.
  std::vector<EvaluationReport> TakeReports();
  bool Done() const { return evaluations_.empty(); }
  // Why the job must end: the last evaluation cannot be made, or, with training over, nothing
  // moves.
  std::optional<std::string> Failure(Instant now, bool training_over) const;
  // Nothing of a run that ends is kept pinned.
  std::vector<PolicyVersion> pinned() const;
  // Called when the run starts, and when it is over with training (deadlines count from then).
  void Begin(Instant now) { running_since_ = last_progress_ = now; }
  void Touch(Instant now) { last_progress_ = now; }

 private:
  enum class Phase { kPinning, kPinned, kRunning, kReleasing, kUnpinning };
  struct Evaluation {
    PolicyVersion version = 0;
    Phase phase = Phase::kPinning;
    bool asked = false;  // pin or unpin is under way
    Instant retry_at;
    Backoff backoff;
    std::vector<bool> scored;
    uint32_t num_scored = 0;
    uint32_t num_correct = 0;
    uint64_t num_tokens = 0;
  };
  bool IsLast(PolicyVersion version) const { return version == spec_->schedule.steps; }
  // The one that runs; null: none does.
  Evaluation* Running();
  // The oldest evaluation's work, once it is pinned.
  void StartIfPinned(Fleet& fleet);

  std::shared_ptr<const JobSpec> spec_;
  std::string run_id_;
  std::vector<uint32_t> rows_;
  std::deque<Evaluation> evaluations_;  // oldest first
  std::vector<EvaluationReport> reports_;
  Instant running_since_;
  Instant last_progress_;
  std::string last_problem_;
  std::string failure_;
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_EVALUATION_H_
