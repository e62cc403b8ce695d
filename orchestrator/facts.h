// SPDX-License-Identifier: Apache-2.0
//
// Facts: what the engine decided or learned, in the order in which the journal keeps them
// (scheduling.md section 4; stored as storage.v1.Fact). Plain values.
#ifndef TITAN_ORCHESTRATOR_FACTS_H_
#define TITAN_ORCHESTRATOR_FACTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/base/ids.h"
#include "orchestrator/reports.h"
#include "orchestrator/time.h"

namespace titan::orchestrator {

// Numbers as type.v1.FinishReason.
enum class FinishReason : uint32_t { kStop = 1, kLength = 2, kCancelled = 3 };

// The reply of one sample. Immutable once shared.
struct Reply {
  std::vector<TokenId> token_ids;
  std::vector<float> logprobs;  // parallel to token_ids
};

// Once more for a job that is queued again after a restart, with another run id.
struct JobSubmitted {
  std::string spec_bytes;  // config.v1.JobSpec as submitted
  std::string request_id;
  std::string run_id;
  std::string data_digest;  // of the data file's bytes; empty: not known
  std::string spec_digest;  // of the spec as it was sent: names in it may stand for ids by now
};
struct StateChanged {
  JobState state = JobState::kQueued;
  std::string reason;
};
struct GroupAdmitted {
  GroupId group;
  uint32_t data_row = 0;
  PolicyVersion version = 0;
};
struct RolloutStarted {
  GroupId group;
  uint32_t attempt = 0;
  std::string worker_id;
};
struct SampleGenerated {
  GroupId group;
  uint32_t sample_index = 0;
  SampleId sample;
  uint32_t attempt = 0;
  std::string worker_id;
  FinishReason finish = FinishReason::kStop;
  PolicyVersion version = 0;
  std::shared_ptr<const Reply> reply;
};
struct SampleScored {
  SampleId sample;
  double value = 0;
  std::map<std::string, double> components;
  std::string grader;
  std::string grader_version;
  std::string model_fault;  // reason; empty: none
};
struct GroupClosed {
  GroupId group;
  bool trainable = false;
  std::string reason;  // why not: zero_variance, cancelled
};
struct StepPlanned {
  Step step = 0;
  std::vector<SampleId> samples;
  std::string plan_digest;
};
struct StepDone {
  StepReport report;
};
struct EvaluationDone {
  EvaluationReport report;
};
struct CommandGiven {
  std::string kind;  // cancel
  std::string request_id;
  std::string reason;
};
// What watchers were told; here so that the numbers of their events go on after a restart. Not part
// of the canonical form.
struct MessageTold {
  std::string text;
};

struct Fact {
  std::string job_id;
  Instant at;
  std::variant<JobSubmitted, StateChanged, GroupAdmitted, RolloutStarted, SampleGenerated,
               SampleScored, GroupClosed, StepPlanned, StepDone, EvaluationDone, CommandGiven,
               MessageTold>
      body;
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_FACTS_H_
