// SPDX-License-Identifier: Apache-2.0
//
// What the engine tells about a job: states, finished steps, evaluations. Fields as in
// orchestrator/v1/orchestrator.proto, where their meaning is stated. Plain values.
#ifndef TITAN_ORCHESTRATOR_REPORTS_H_
#define TITAN_ORCHESTRATOR_REPORTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "orchestrator/job_spec.h"
#include "orchestrator/time.h"

namespace titan::orchestrator {

// Numbers as orchestrator.v1.JobState.
enum class JobState : uint32_t {
  kQueued = 1,
  kStarting = 2,
  kRunning = 3,
  kStopping = 4,
  kSucceeded = 5,
  kFailed = 6,
  kCancelled = 7,
};
constexpr bool IsFinal(JobState state) { return state >= JobState::kSucceeded; }
constexpr const char* NameOf(JobState state) {
  constexpr const char* kNames[] = {"?",        "QUEUED",    "STARTING", "RUNNING",
                                    "STOPPING", "SUCCEEDED", "FAILED",   "CANCELLED"};
  return kNames[static_cast<uint32_t>(state) < 8 ? static_cast<uint32_t>(state) : 0];
}

struct ParityTotals {
  double logprob_difference_max = 0;
  uint64_t tokens_differing = 0;
  uint64_t tokens_compared = 0;

  void Add(const ParityTotals& other);
};

struct PhaseTimes {
  double wall = 0, generate = 0, score = 0, wait_for_samples = 0;
  double parity_forward = 0, forward = 0, backward = 0, optimizer = 0, publish = 0;
};

struct GeneratorShare {
  std::string worker_id;
  uint64_t tokens = 0;
  uint64_t batch_fingerprint = 0;
};

struct StepReport {
  Step step = 0;
  PolicyVersion version = 0;
  std::string weights_digest;
  double reward_mean = 0;
  uint32_t groups_trained = 0;
  uint32_t groups_untrainable = 0;
  uint32_t samples = 0;
  uint64_t tokens_generated = 0;
  uint64_t tokens_trained = 0;
  uint32_t sample_tokens_max = 0;  // prompt and reply of the longest trained sample
  double completion_tokens_mean = 0;
  double loss = 0;
  double gradient_norm = 0;
  double clip_fraction = 0;
  double ratio_max = 0;
  double learning_rate = 0;
  ParityTotals parity;
  uint64_t age = 0;
  PhaseTimes phases;
  uint32_t samples_per_pack_min = 0;
  uint32_t sequences_running_max = 0;
  double generated_tokens_per_second = 0;
  std::vector<GeneratorShare> generator_shares;
  bool generated_before_previous_commit = false;
};

// The report without what may differ between two runs of the same job: times, batch sizes, who made
// it.
StepReport CanonicalOf(StepReport report);

struct EvaluationReport {
  PolicyVersion version = 0;
  uint32_t questions = 0;
  uint32_t correct = 0;
  double accuracy = 0;
  double seconds_since_running = 0;
  double completion_tokens_mean = 0;
  std::string skipped_reason;
};
EvaluationReport CanonicalOf(EvaluationReport report);

// A job as listed.
struct JobInfo {
  std::string job_id;
  std::string run_id;
  std::string request_id;
  std::string data_digest;  // of the data file's bytes when it was submitted; empty: not known
  std::string spec_digest;  // of the spec as it was sent
  std::shared_ptr<const JobSpec> spec;
  JobState state = JobState::kQueued;
  std::string reason;  // of the end, or what it waits for
  uint64_t steps_done = 0;
  int64_t submitted_unix_ms = 0;
  int64_t running_unix_ms = 0;
  int64_t ended_unix_ms = 0;
  std::optional<StepReport> last_step;
  std::vector<EvaluationReport> evaluations;
  ParityTotals parity;
};
// The order of the queue and of lists: by the number in the id. Clocks may be set back, and two
// jobs may share a millisecond.
bool SubmittedBefore(const JobInfo& a, const JobInfo& b);

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_REPORTS_H_
