// SPDX-License-Identifier: Apache-2.0
//
// The `logical` schedule of one job (scheduling.md section 2): which groups exist, under which
// version each is generated, when a slot is settled, what a step trains. A pure function of (spec,
// data, scores); nothing here depends on the order or time of arrivals. Not thread-safe; no I/O.
//
//   version V committed -> steps V..V+S are open: P slots each, candidate 0 admitted
//   group scored        -> trainable: the slot is settled
//                       -> not: the next candidate is admitted (replace), or the slot is empty
//   all slots settled   -> the step can be planned: trained groups in slot order, samples by index
#ifndef TITAN_ORCHESTRATOR_SCHEDULE_H_
#define TITAN_ORCHESTRATOR_SCHEDULE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "orchestrator/actions.h"
#include "orchestrator/dataset.h"
#include "orchestrator/facts.h"
#include "orchestrator/job_spec.h"

namespace titan::orchestrator {

struct SampleRecord {
  SampleId id;
  std::shared_ptr<const Reply> reply;  // null: not generated yet
  FinishReason finish = FinishReason::kStop;
  std::string worker_id;
  uint32_t sequences_running_max = 0;
  uint64_t batch_fingerprint = 0;
  bool scored = false;
  double score = 0;
};

struct Group {
  GroupId id;
  uint32_t data_row = 0;
  PolicyVersion version = 0;
  std::vector<SampleRecord> samples;
  uint32_t num_scored = 0;
  bool closed = false;
  bool trainable = false;
  std::string reason;  // why not trainable
};

// A step between its opening and its end.
struct OpenStep {
  Step step = 0;
  PolicyVersion version = 0;  // that generates it
  std::map<GroupId, Group> groups;
  std::vector<std::optional<GroupId>>
      taken;  // per slot: its trainable group; settled_ tells empty from open
  std::vector<bool> settled;
  uint32_t num_settled = 0;
  bool planned = false;
  // For the report; set by the engine.
  std::optional<Instant> first_rollout, last_sample, last_score;
  bool Complete() const { return num_settled == settled.size(); }
};

struct StepPlan {
  Step step = 0;
  std::string digest;                  // PlanDigest of the trained samples
  std::vector<SampleId> trained;       // in plan order
  std::vector<PlannedSample> samples;  // trained groups in slot order, then groups only compared
  uint32_t num_groups_trained = 0;
  uint32_t num_groups_untrainable = 0;
};

// hash64 over (sample id as u64, advantage as f64 bits) of the trained samples in plan order, as 16
// hex digits.
std::string PlanDigest(const std::vector<PlannedSample>& samples);

// The groups of candidate 0 of step t whose log-probs are compared when max_age > 0: the
// ceil(share * P) with the smallest hash64(job seed, group id), in ascending order of group id.
std::vector<GroupId> ParityGroups(const JobSpec& spec, Step step);

class LogicalSchedule {
 public:
  LogicalSchedule(std::shared_ptr<const JobSpec> spec, DataOrder order);

  // Opens every step that the committed version allows and returns the groups admitted, in order of
  // id. Internal: two sample ids are equal (a collision of the hash).
  StatusOr<std::vector<const Group*>> Open(PolicyVersion committed);

  // Stores a reply. False: unknown group or index, or the sample has one already (then nothing
  // changes).
  bool AddReply(GroupId group, uint32_t sample_index, SampleRecord record);

  struct ScoreEffect {
    const Group* closed = nullptr;    // the group that this score completed
    const Group* admitted = nullptr;  // the candidate that follows it
    bool slot_empty = false;          // no candidate of the slot is trainable
  };
  // Stores a score; the first one counts. Internal: as Open.
  StatusOr<ScoreEffect> AddScore(GroupId group, uint32_t sample_index, double value);

  // Index of a sample id among the open steps.
  struct Place {
    GroupId group;
    uint32_t sample_index = 0;
  };
  std::optional<Place> Find(SampleId sample) const;
  const Group* FindGroup(GroupId group) const;
  OpenStep* FindStep(Step step);
  const std::map<Step, OpenStep>& open_steps() const { return steps_; }

  // REQUIRES: the step is open and Complete().
  StepPlan Plan(Step step);
  // Forgets a step that is done.
  void Close(Step step);

  // Versions that still may have to generate something, ascending, without repeats.
  std::vector<PolicyVersion> VersionsInUse() const;
  // Groups of open steps that are not closed, or closed as trainable and so not trained yet; in
  // order of id.
  std::vector<GroupId> UnfinishedGroups() const;

 private:
  StatusOr<const Group*> Admit(OpenStep& step, uint32_t slot, uint32_t candidate);

  std::shared_ptr<const JobSpec> spec_;
  AdvantageKind advantage_;
  DataOrder order_;
  Step next_to_open_ = 0;
  std::map<Step, OpenStep> steps_;
  std::map<SampleId, Place> places_;
};

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_SCHEDULE_H_
