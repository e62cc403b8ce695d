// SPDX-License-Identifier: Apache-2.0
//
// The progress of a job as people read it: one line a step with reward, accuracy, tokens/s, parity
// and time left, and a summary at the end. Collects what the demo's result needs. Not thread-safe.
#ifndef TITAN_CLIENTS_CLUSTER_PROGRESS_H_
#define TITAN_CLIENTS_CLUSTER_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "clients/cluster/terminal.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::cluster {

class JobProgress {
 public:
  explicit JobProgress(Terminal terminal) : terminal_(terminal) {}

  // The text to show for an event, lines with their ends; empty: nothing to show.
  std::string OnEvent(const orchestrator::v1::WatchJobResponse& event);
  // Parity, pack and batch sizes, overlap, curve.
  std::string Summary() const;

  const std::vector<orchestrator::v1::StepReport>& steps() const { return steps_; }
  const std::vector<orchestrator::v1::EvaluationReport>& evaluations() const {
    return evaluations_;
  }
  const orchestrator::v1::Job& job() const { return job_; }  // as of its last change
  orchestrator::v1::ParityTotals parity() const;             // summed over the steps seen
  uint32_t samples_per_pack_min() const;  // over steps that compared; 0: none did
  uint32_t sequences_running_max() const;
  // Share of the steps after the first whose rollouts started before the previous version was
  // committed.
  double overlap_share() const;

 private:
  std::string StepLine(const orchestrator::v1::StepReport& step) const;
  double SecondsLeft() const;

  Terminal terminal_;
  orchestrator::v1::Job job_;
  std::vector<orchestrator::v1::StepReport> steps_;
  std::vector<orchestrator::v1::EvaluationReport> evaluations_;
};

// "log-prob difference max 0, tokens differing 0 of 1234", or "not checked".
std::string FormatParity(const orchestrator::v1::ParityTotals& parity);

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_PROGRESS_H_
