// SPDX-License-Identifier: Apache-2.0
//
// Goal: every wrong field is named at once, every valid one accepted, fields without effect warned
// about.
#include "orchestrator/job_spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "orchestrator/reports.h"
#include "tests/support/orchestrator_simulation.h"

namespace titan::orchestrator {
namespace {

using testing::MakeSpec;

bool Names(const SpecCheck& check, const std::string& path) {
  return std::any_of(check.problems.begin(), check.problems.end(),
                     [&](const FieldProblem& problem) { return problem.path == path; });
}

TEST(JobSpecTest, AValidSpecHasNoProblemAndNoWarning) {
  const SpecCheck check = CheckJobSpec(MakeSpec());
  EXPECT_TRUE(check.problems.empty());
  EXPECT_TRUE(check.warnings.empty());
}

TEST(JobSpecTest, EveryNumericsModeIsAccepted) {
  for (const char* mode : {"f32", "w16", "bf16"}) {
    JobSpec spec = MakeSpec();
    spec.model.mode = mode;
    EXPECT_TRUE(CheckJobSpec(spec).problems.empty()) << mode;
  }
}

TEST(JobSpecTest, EveryFieldIsChecked) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const struct {
    const char* path;
    std::function<void(JobSpec&)> breaks;
  } cases[] = {
      {"name", [](JobSpec& s) { s.name = std::string(129, 'x'); }},
      {"kind", [](JobSpec& s) { s.kind = "sft"; }},
      {"model.path", [](JobSpec& s) { s.model.path = ""; }},
      {"model.id", [](JobSpec& s) { s.model.id = "base"; }},  // beside model.path
      {"model.mode", [](JobSpec& s) { s.model.mode = "fp8"; }},
      {"model.max_sequence_tokens", [](JobSpec& s) { s.model.max_sequence_tokens = 1u << 21; }},
      {"data.path", [](JobSpec& s) { s.data.path = ""; }},
      {"schedule.kind", [](JobSpec& s) { s.schedule.kind = "windowed"; }},
      {"schedule.steps", [](JobSpec& s) { s.schedule.steps = 0; }},
      {"schedule.groups_per_step", [](JobSpec& s) { s.schedule.groups_per_step = 0; }},
      {"schedule.groups_per_step", [](JobSpec& s) { s.schedule.groups_per_step = 65536; }},
      {"schedule.on_untrainable", [](JobSpec& s) { s.schedule.on_untrainable = "keep"; }},
      {"schedule.max_candidates", [](JobSpec& s) { s.schedule.max_candidates = 257; }},
      {"schedule.on_empty_slot", [](JobSpec& s) { s.schedule.on_empty_slot = ""; }},
      {"rollout.samples_per_group", [](JobSpec& s) { s.rollout.samples_per_group = 1; }},
      {"rollout.temperature", [](JobSpec& s) { s.rollout.temperature = 0; }},
      {"rollout.max_new_tokens", [](JobSpec& s) { s.rollout.max_new_tokens = 0; }},
      {"rollout.max_new_tokens", [](JobSpec& s) { s.rollout.max_new_tokens = 1024; }},
      {"reward.grader", [](JobSpec& s) { s.reward.grader = ""; }},
      {"reward.grader_parameters_json",
       [](JobSpec& s) { s.reward.grader_parameters_json = "[1]"; }},
      {"reward.grader_parameters_json", [](JobSpec& s) { s.reward.grader_parameters_json = "{"; }},
      {"training.advantage", [](JobSpec& s) { s.training.advantage = "gae"; }},
      {"training.advantage_epsilon", [&](JobSpec& s) { s.training.advantage_epsilon = nan; }},
      {"training.clip_low", [](JobSpec& s) { s.training.clip_low = -0.1; }},
      {"training.clip_high", [&](JobSpec& s) { s.training.clip_high = inf; }},
      {"training.aggregation", [](JobSpec& s) { s.training.aggregation = "mean"; }},
      {"training.learning_rate", [](JobSpec& s) { s.training.learning_rate = -1; }},
      {"training.beta1", [](JobSpec& s) { s.training.beta1 = 1; }},
      {"training.beta2", [&](JobSpec& s) { s.training.beta2 = nan; }},
      {"training.epsilon", [](JobSpec& s) { s.training.epsilon = 0; }},
      {"training.weight_decay", [](JobSpec& s) { s.training.weight_decay = 2; }},
      {"training.max_gradient_norm", [](JobSpec& s) { s.training.max_gradient_norm = 0; }},
      {"training.max_gradient_norm", [](JobSpec& s) { s.training.max_gradient_norm = -1; }},
      {"training.max_gradient_norm", [](JobSpec& s) { s.training.max_gradient_norm = 1e-320; }},
      {"name", [](JobSpec& s) { s.name = "two\nlines"; }},
      {"training.max_gradient_norm", [&](JobSpec& s) { s.training.max_gradient_norm = nan; }},
      {"training.max_gradient_norm", [&](JobSpec& s) { s.training.max_gradient_norm = inf; }},
      {"training.shards", [](JobSpec& s) { s.training.shards = 3; }},
      {"training.shards", [](JobSpec& s) { s.training.shards = 2048; }},
      {"training.shared_group_tokens",
       [](JobSpec& s) { s.training.shared_group_tokens = (1u << 20) + 1; }},
      {"schedule.max_age", [](JobSpec& s) { s.schedule.max_age = 65; }},
      {"parity.share", [](JobSpec& s) { s.parity.share = 1.5; }},
      {"parity.on_difference", [](JobSpec& s) { s.parity.on_difference = "ignore"; }},
      {"deadlines.step_ms", [](JobSpec& s) { s.deadlines.step_ms = 0; }},
  };
  for (const auto& c : cases) {
    JobSpec spec = MakeSpec();
    c.breaks(spec);
    const SpecCheck check = CheckJobSpec(spec);
    EXPECT_TRUE(Names(check, c.path)) << c.path;
    EXPECT_EQ(check.problems.size(), 1u) << c.path;
  }
  JobSpec empty;
  EXPECT_GE(CheckJobSpec(empty).problems.size(), 6u);
}

TEST(JobSpecTest, ProblemsNameTheValueAndTheNearestValidOne) {
  JobSpec spec = MakeSpec();
  spec.training.advantage = "group_means";
  spec.training.max_gradient_norm = -2.5;
  spec.kind = "sft";
  const SpecCheck check = CheckJobSpec(spec);
  std::map<std::string, std::string> problems;
  for (const auto& problem : check.problems) problems[problem.path] = problem.description;
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_EQ(problems["training.advantage"],
            "is \"group_means\"; did you mean \"group_mean\"? valid: group_zscore_population, "
            "group_zscore_sample, group_mean");
  EXPECT_EQ(problems["training.max_gradient_norm"].rfind("is -2.5; valid: ", 0), 0u)
      << problems["training.max_gradient_norm"];
  EXPECT_EQ(problems["kind"], "is \"sft\"; valid: rl");
}

TEST(JobSpecTest, FieldsWithoutEffectWarnOnlyWhenGiven) {
  JobSpec spec = MakeSpec();
  spec.schedule.on_untrainable = "drop";
  spec.schedule.max_age = 0;
  spec.data.held_out = 0;
  EXPECT_TRUE(CheckJobSpec(spec).warnings.empty());
  spec.given = {"schedule.max_candidates", "parity.share", "evaluation.every_steps",
                "training.beta1"};
  EXPECT_EQ(CheckJobSpec(spec).warnings.size(), 3u);
}

TEST(JobSpecTest, TheJournalIsEstimatedWithEveryCandidate) {
  JobSpec spec = MakeSpec();
  spec.schedule.max_candidates = 8;
  spec.schedule.on_untrainable = "drop";
  const uint64_t drop = JournalBytesPerStep(spec);
  spec.schedule.on_untrainable = "replace";
  EXPECT_EQ(JournalBytesPerStep(spec) - 1000, 8 * (drop - 1000));
}

TEST(ReportsTest, ANanOfParityIsNotHidden) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ParityTotals totals;
  totals.Add({0.5, 1, 10});
  totals.Add({0.25, 1, 10});
  EXPECT_EQ(totals.logprob_difference_max, 0.5);
  totals.Add({nan, 1, 10});
  totals.Add({0.75, 1, 10});
  EXPECT_TRUE(std::isnan(totals.logprob_difference_max));
  EXPECT_EQ(totals.tokens_differing, 4u);
}

}  // namespace
}  // namespace titan::orchestrator
