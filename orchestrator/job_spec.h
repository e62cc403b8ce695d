// SPDX-License-Identifier: Apache-2.0
//
// The job as the engine knows it: config/v1/job.proto with every default filled in, and the check
// that names all of its problems at once. Field names and paths are those of the proto. Plain
// values.
#ifndef TITAN_ORCHESTRATOR_JOB_SPEC_H_
#define TITAN_ORCHESTRATOR_JOB_SPEC_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"

namespace titan::orchestrator {

enum class AdvantageKind { kGroupMean, kGroupZscorePopulation, kGroupZscoreSample };
// The kind that a name of training.advantage means; nullopt: no such name.
std::optional<AdvantageKind> AdvantageKindOf(std::string_view name);

struct JobSpec {
  std::string name;
  std::string kind = "rl";
  uint64_t seed = 0;

  struct Model {
    std::string path;  // this or id
    std::string id;    // of a model in the weight store, or its name
    std::string mode = "f32";
    uint32_t max_sequence_tokens = 1024;  // prompt + reply
  } model;

  struct Data {
    std::string path;
    uint32_t held_out = 0;
    std::string system_prompt;
    std::string id;  // of a stored file, instead of path
  } data;

  struct Schedule {
    std::string kind = "logical";
    uint32_t max_age = 1;  // S
    uint32_t steps = 0;
    uint32_t groups_per_step = 0;  // P
    std::string on_untrainable = "replace";
    uint32_t max_candidates = 8;  // A
    std::string on_empty_slot = "skip";
  } schedule;

  struct Rollout {
    uint32_t samples_per_group = 0;  // n
    float temperature = 1.0f;
    uint32_t max_new_tokens = 0;
  } rollout;

  struct Reward {
    std::string grader;
    std::string grader_parameters_json = "{}";
  } reward;

  struct Training {
    std::string advantage = "group_zscore_population";
    double advantage_epsilon = 1e-6;
    double clip_low = 0.2;
    double clip_high = 0.2;
    std::string aggregation = "token_mean";
    double learning_rate = 1e-6;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0.0;
    double max_gradient_norm = 1.0;
    uint32_t shards = 1;
    uint32_t shared_group_tokens = 1024;
    uint32_t checkpoint_every_steps = 0;
  } training;

  struct Evaluation {
    uint32_t every_steps = 10;
    uint32_t max_new_tokens = 0;  // 0: rollout.max_new_tokens
    uint32_t slots = 1;           // of the weight store
  } evaluation;

  struct Parity {
    double share = 0.0625;
    std::string on_difference = "stop";
  } parity;

  struct Deadlines {
    uint32_t first_step_ms = 600000;
    uint32_t step_ms = 600000;
    uint32_t reward_ms = 60000;
    uint32_t workers_ms = 30000;
  } deadlines;

  // Paths of the optional fields that the user wrote down ("schedule.max_candidates"); for
  // warnings.
  std::set<std::string> given;

  uint32_t EvaluationTokens() const {
    return evaluation.max_new_tokens != 0 ? evaluation.max_new_tokens : rollout.max_new_tokens;
  }
  bool Replaces() const { return schedule.on_untrainable == "replace"; }
  // Version that generates step t: max(0, t - S).
  PolicyVersion VersionOf(Step t) const { return t > schedule.max_age ? t - schedule.max_age : 0; }
};

struct FieldProblem {
  std::string path;         // training.learning_rate
  std::string description;  // what is wrong, and which values are valid
};

struct SpecCheck {
  std::vector<FieldProblem> problems;  // empty: the spec is valid
  std::vector<std::string> warnings;   // fields without effect in this job, one sentence each
};

// Checks every field; reports all problems, not the first.
SpecCheck CheckJobSpec(const JobSpec& spec);

// What one step appends to the journal at most, in bytes (an estimate for people).
uint64_t JournalBytesPerStep(const JobSpec& spec);

}  // namespace titan::orchestrator

#endif  // TITAN_ORCHESTRATOR_JOB_SPEC_H_
