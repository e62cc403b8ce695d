// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/job_spec.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <sstream>

#include "core/base/hash.h"
#include "core/base/nearest_name.h"
#include "core/formats/json.h"

namespace titan::orchestrator {
namespace {

// A sample with its prompt and log-probs travels in one message of at most 1 MiB.
constexpr uint64_t kMaxSequenceTokens = 1u << 17;

class Checker {
 public:
  Checker(const JobSpec& spec, SpecCheck* out) : spec_(spec), out_(*out) {}

  void Problem(std::string path, std::string description) {
    out_.problems.push_back({std::move(path), std::move(description)});
  }
  void OneOf(const char* path, const std::string& value,
             std::initializer_list<const char*> allowed) {
    std::string list;
    for (const char* name : allowed) {
      if (value == name) return;
      list += list.empty() ? "" : ", ";
      list += name;
    }
    const std::string nearest = NearestName(value, {allowed.begin(), allowed.end()});
    Problem(
        path,
        "is \"" + value + "\"; " +
            (nearest.empty() || allowed.size() == 1 ? "" : "did you mean \"" + nearest + "\"? ") +
            "valid: " + list);
  }
  void Between(const char* path, uint64_t value, uint64_t low, uint64_t high) {
    if (value >= low && value <= high) return;
    const bool missing = value == 0 && spec_.given.count(path) == 0;
    Problem(path, (missing ? "is missing or 0" : "is " + std::to_string(value)) +
                      "; valid: " + std::to_string(low) + " to " + std::to_string(high));
  }
  // low <= value < high (or <= high if closed), finite.
  void Number(const char* path, double value, bool valid, const char* range) {
    if (!std::isfinite(value) || !valid) {
      std::ostringstream text;
      text << value;  // short, and says 1e-320 where a fixed form says 0.000000
      Problem(path, "is " + text.str() + "; valid: " + range);
    }
  }

 private:
  const JobSpec& spec_;
  SpecCheck& out_;
};

void CheckTraining(const JobSpec::Training& t, Checker& check) {
  check.OneOf("training.advantage", t.advantage,
              {"group_zscore_population", "group_zscore_sample", "group_mean"});
  check.Number("training.advantage_epsilon", t.advantage_epsilon,
               t.advantage_epsilon >= 0 && t.advantage_epsilon <= 1, "0 to 1");
  check.Number("training.clip_low", t.clip_low, t.clip_low >= 0 && t.clip_low <= 1, "0 to 1");
  check.Number("training.clip_high", t.clip_high, t.clip_high >= 0 && t.clip_high <= 1e6,
               "0 to 1000000");
  check.OneOf("training.aggregation", t.aggregation,
              {"token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"});
  check.Number("training.learning_rate", t.learning_rate,
               t.learning_rate >= 0 && t.learning_rate <= 1, "0 to 1");
  check.Number("training.beta1", t.beta1, t.beta1 >= 0 && t.beta1 < 1, "at least 0 and below 1");
  check.Number("training.beta2", t.beta2, t.beta2 >= 0 && t.beta2 < 1, "at least 0 and below 1");
  check.Number("training.epsilon", t.epsilon, t.epsilon > 0 && t.epsilon <= 1,
               "above 0, at most 1");
  check.Number("training.weight_decay", t.weight_decay, t.weight_decay >= 0 && t.weight_decay <= 1,
               "0 to 1");
  // Below that the factor of the gradients is no normal float any more: weights would freeze.
  check.Number("training.max_gradient_norm", t.max_gradient_norm, t.max_gradient_norm >= 1e-30,
               "a finite number, at least 1e-30");
  if (t.shards == 0 || (t.shards & (t.shards - 1)) != 0 || t.shards > 1024) {
    check.Problem("training.shards",
                  "is " + std::to_string(t.shards) + "; valid: a power of two, 1 to 1024");
  }
  if (t.shared_group_tokens > 1u << 20) {
    check.Problem("training.shared_group_tokens",
                  "is " + std::to_string(t.shared_group_tokens) + "; valid: 0 to 1048576");
  }
}

void CheckSchedule(const JobSpec& spec, Checker& check) {
  const JobSpec::Schedule& s = spec.schedule;
  check.OneOf("schedule.kind", s.kind, {"logical"});
  check.Between("schedule.max_age", s.max_age, 0, 64);
  check.Between("schedule.steps", s.steps, 1, 0xffffffffu);
  check.Between("schedule.groups_per_step", s.groups_per_step, 1, 65535);
  check.OneOf("schedule.on_untrainable", s.on_untrainable, {"replace", "drop"});
  check.Between("schedule.max_candidates", s.max_candidates, 1, 256);
  check.OneOf("schedule.on_empty_slot", s.on_empty_slot, {"skip", "fail"});
}

void Warn(const JobSpec& spec, std::vector<std::string>& warnings) {
  const auto no_effect = [&](const char* path, const char* why) {
    if (spec.given.count(path) != 0) {
      warnings.push_back(std::string(path) + " has no effect: " + why);
    }
  };
  if (!spec.Replaces()) {
    no_effect("schedule.max_candidates", "schedule.on_untrainable is drop");
    no_effect("schedule.on_empty_slot", "schedule.on_untrainable is drop");
  }
  if (spec.schedule.max_age == 0) {
    no_effect("parity.share", "with schedule.max_age 0 every trained token is compared");
  }
  if (spec.data.held_out == 0) {
    no_effect("evaluation.every_steps", "data.held_out is 0, so there is nothing to evaluate");
    no_effect("evaluation.max_new_tokens", "data.held_out is 0, so there is nothing to evaluate");
    no_effect("evaluation.slots", "data.held_out is 0, so there is nothing to evaluate");
  }
  if (spec.training.advantage == "group_mean") {
    no_effect("training.advantage_epsilon", "training.advantage is group_mean");
  }
  if (spec.schedule.max_age > 0 && spec.parity.share == 0) {
    no_effect("parity.on_difference", "parity.share is 0, so nothing is compared");
  }
}

}  // namespace

std::optional<AdvantageKind> AdvantageKindOf(std::string_view name) {
  if (name == "group_mean") return AdvantageKind::kGroupMean;
  if (name == "group_zscore_population") return AdvantageKind::kGroupZscorePopulation;
  if (name == "group_zscore_sample") return AdvantageKind::kGroupZscoreSample;
  return std::nullopt;
}

SpecCheck CheckJobSpec(const JobSpec& spec) {
  SpecCheck out;
  Checker check(spec, &out);
  if (spec.name.size() > 128) check.Problem("name", "is longer than 128 characters");
  if (std::any_of(spec.name.begin(), spec.name.end(),
                  [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; })) {
    check.Problem("name", "has a control character; it stands in tables and logs");
  }
  check.OneOf("kind", spec.kind, {"rl"});
  if (spec.model.id.empty()) {
    if (spec.model.path.empty()) {
      check.Problem("model.path",
                    "is required, or model.id of a stored model (titanctl weights ls lists them)");
    }
  } else if (!spec.model.path.empty()) {
    check.Problem("model.id", "is given together with model.path; leave one of them out");
  }
  check.OneOf("model.mode", spec.model.mode, {"f32", "w16", "bf16"});
  check.Between("model.max_sequence_tokens", spec.model.max_sequence_tokens, 2, kMaxSequenceTokens);
  if (spec.data.id.empty()) {
    if (spec.data.path.empty()) {
      check.Problem("data.path",
                    "is required, or data.id of a stored file (titanctl data list lists them)");
    }
  } else if (!spec.data.path.empty()) {
    check.Problem("data.id", "is given together with data.path; leave one of them out");
  } else if (Hash128 ignored; !FromHex(spec.data.id, &ignored)) {
    check.Problem("data.id", "is \"" + spec.data.id +
                                 "\"; valid: the 32 hex digits that `titanctl data upload` prints");
  }
  CheckSchedule(spec, check);
  if (spec.rollout.samples_per_group == 1) {
    check.Problem("rollout.samples_per_group",
                  "is 1; with one sample every group has equal rewards and can never train; "
                  "valid: 2 to 4096");
  } else {
    check.Between("rollout.samples_per_group", spec.rollout.samples_per_group, 2, 4096);
  }
  check.Number("rollout.temperature", spec.rollout.temperature,
               spec.rollout.temperature >= 1e-3f && spec.rollout.temperature <= 100.0f,
               "0.001 to 100");
  check.Between("rollout.max_new_tokens", spec.rollout.max_new_tokens, 1, kMaxSequenceTokens);
  if (spec.rollout.max_new_tokens >= spec.model.max_sequence_tokens) {
    check.Problem("rollout.max_new_tokens", "is " + std::to_string(spec.rollout.max_new_tokens) +
                                                "; must be below model.max_sequence_tokens (" +
                                                std::to_string(spec.model.max_sequence_tokens) +
                                                "), which holds the prompt too");
  }
  if (spec.reward.grader.empty()) {
    check.Problem("reward.grader", "is required; valid: the name of a grader of a reward service");
  }
  const auto parameters =
      formats::ParseJson(spec.reward.grader_parameters_json, "reward.grader_parameters_json");
  if (!parameters.ok()) {
    constexpr std::string_view kField = "reward.grader_parameters_json: ";
    const std::string message = MessageOf(parameters.status());
    check.Problem("reward.grader_parameters_json",
                  message.starts_with(kField) ? message.substr(kField.size()) : message);
  } else if (!parameters->is_object()) {
    check.Problem("reward.grader_parameters_json", "must be a JSON object");
  }
  CheckTraining(spec.training, check);
  if (spec.data.held_out > 0 && spec.EvaluationTokens() >= spec.model.max_sequence_tokens &&
      spec.evaluation.max_new_tokens != 0) {
    check.Problem("evaluation.max_new_tokens", "must be below model.max_sequence_tokens (" +
                                                   std::to_string(spec.model.max_sequence_tokens) +
                                                   ")");
  }
  check.Number("parity.share", spec.parity.share, spec.parity.share >= 0 && spec.parity.share <= 1,
               "0 to 1");
  check.OneOf("parity.on_difference", spec.parity.on_difference, {"alarm", "stop"});
  check.Between("evaluation.slots", spec.evaluation.slots, 1, 8);
  constexpr uint64_t kMaxMs = 7ull * 24 * 3600 * 1000;
  check.Between("deadlines.first_step_ms", spec.deadlines.first_step_ms, 1, kMaxMs);
  check.Between("deadlines.step_ms", spec.deadlines.step_ms, 1, kMaxMs);
  check.Between("deadlines.reward_ms", spec.deadlines.reward_ms, 1, kMaxMs);
  check.Between("deadlines.workers_ms", spec.deadlines.workers_ms, 1, kMaxMs);
  Warn(spec, out.warnings);
  return out;
}

uint64_t JournalBytesPerStep(const JobSpec& spec) {
  // A sample: its tokens and log-probs in a segment (4 + 4 bytes a token) and about 200 bytes of
  // facts.
  const uint64_t sample = uint64_t{8} * spec.rollout.max_new_tokens + 20 + 200;
  const uint64_t group = spec.rollout.samples_per_group * sample + 150;
  // With replacement every slot may use up all of its candidates.
  const uint64_t groups = uint64_t{spec.schedule.groups_per_step} *
                          (spec.Replaces() ? spec.schedule.max_candidates : 1);
  return groups * group + 1000;
}

}  // namespace titan::orchestrator
