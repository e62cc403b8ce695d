// SPDX-License-Identifier: Apache-2.0
//
// What the number fields of a job may be, in words, for the messages about a value that is no such
// number at all: the orchestrator, which checks the rest, never sees that one. Pure, any thread.
#ifndef TITAN_CLIENTS_CLUSTER_JOB_FIELDS_H_
#define TITAN_CLIENTS_CLUSTER_JOB_FIELDS_H_

#include <string>
#include <string_view>

namespace titan::cluster {

struct JobFieldRange {
  const char* path;
  const char* valid;  // in the words of the orchestrator's check
};

// clang-format off
inline constexpr JobFieldRange kJobFieldRanges[] = {
    {"model.max_sequence_tokens", "2 to 131072"},
    {"schedule.max_age", "0 to 64"},
    {"schedule.steps", "1 to 4294967295"},
    {"schedule.groups_per_step", "1 to 65535"},
    {"schedule.max_candidates", "1 to 256"},
    {"rollout.samples_per_group", "2 to 4096"},
    {"rollout.temperature", "0.001 to 100"},
    {"rollout.max_new_tokens", "1 to 131072"},
    {"training.advantage_epsilon", "0 to 1"},
    {"training.clip_low", "0 to 1"},
    {"training.clip_high", "0 to 1000000"},
    {"training.learning_rate", "0 to 1"},
    {"training.beta1", "at least 0 and below 1"},
    {"training.beta2", "at least 0 and below 1"},
    {"training.epsilon", "above 0, at most 1"},
    {"training.weight_decay", "0 to 1"},
    {"training.max_gradient_norm", "a finite number, at least 1e-30"},
    {"training.shards", "a power of two, 1 to 1024"},
    {"training.shared_group_tokens", "0 to 1048576"},
    {"evaluation.slots", "1 to 8"},
    {"parity.share", "0 to 1"},
    {"deadlines.first_step_ms", "1 to 604800000"},
    {"deadlines.step_ms", "1 to 604800000"},
    {"deadlines.reward_ms", "1 to 604800000"},
    {"deadlines.workers_ms", "1 to 604800000"},
};
// clang-format on

// Empty: no number field, or one with the whole range of its type.
inline std::string ValidJobValues(const std::string& path) {
  for (const JobFieldRange& row : kJobFieldRanges) {
    if (path == row.path) return row.valid;
  }
  return "";
}

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_JOB_FIELDS_H_
