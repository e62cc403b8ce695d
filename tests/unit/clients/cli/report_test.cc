// SPDX-License-Identifier: Apache-2.0
// Goal: the report is one well-formed page that asks for nothing outside itself, shows every curve,
// both ends' samples, and never lets a reply become markup.
#include "clients/cli/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "clients/cli/svg_chart.h"

namespace titan::cli {
namespace {

using namespace orchestrator::v1;  // NOLINT: the test speaks of little else

ReportInput SomeInput(int steps) {
  ReportInput input;
  input.job.set_job_id("job-1");
  input.job.set_name("a <b> & \"c\"");
  input.job.set_state(JOB_STATE_SUCCEEDED);
  input.job.set_steps_done(static_cast<uint64_t>(steps));
  input.job.set_steps_total(static_cast<uint64_t>(steps));
  for (int t = 0; t < steps; ++t) {
    StepReport step;
    step.set_step(static_cast<uint64_t>(t));
    step.set_reward_mean(0.1 * t);
    step.set_completion_tokens_mean(20 - t);
    step.set_age(t > 0 ? 1 : 0);
    step.mutable_parity()->set_tokens_compared(100);
    step.mutable_phases()->set_wall(3);
    step.mutable_phases()->set_forward(1);
    step.mutable_phases()->set_backward(1.5);
    input.steps.push_back(step);
  }
  EvaluationReport evaluation;
  evaluation.set_accuracy(0.25);
  input.evaluations.push_back(evaluation);
  evaluation.set_accuracy(0.75);
  evaluation.set_version(static_cast<uint64_t>(steps));
  input.evaluations.push_back(evaluation);
  for (auto* side : {&input.first, &input.last}) {
    ListRolloutsResponse group;
    group.set_step(side == &input.first ? 0 : static_cast<uint64_t>(steps) - 1);
    group.set_prompt("<script>alert(1)</script>");
    auto* sample = group.add_samples();
    sample->set_text("</pre><img src=x> \x01");
    sample->set_scored(true);
    side->push_back(group);
  }
  return input;
}

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// Every tag that is opened is closed, in order (void elements aside).
bool IsBalanced(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag[0] == '!' || tag.back() == '/' || tag.starts_with("meta")) continue;
    const std::string name = tag.substr(tag[0] == '/', tag.find(' ') - (tag[0] == '/'));
    if (tag[0] != '/') {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

TEST(ReportTest, IsSelfContainedAndWhole) {
  const std::string html = ReportHtml(SomeInput(4));
  EXPECT_TRUE(IsBalanced(html));
  for (const char* outside : {"http://", "https://", "<script", "<img", "@import", "url("}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
  for (const char* shown :
       {"Mean reward of a step", "Greedy accuracy", "Parity: tokens", "completion length",
        "Policy age", "Trainer&#39;s phases", "<h3>Step 0</h3>", "<h3>Step 3</h3>",
        "0.250 \xe2\x86\x92 0.750", "0 of 400", "prefers-color-scheme:dark", "width=device-width",
        "&lt;script&gt;alert(1)&lt;/script&gt;"}) {
    EXPECT_NE(html.find(shown), std::string::npos) << shown;
  }
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  EXPECT_EQ(Count(html, "<svg"), 9u);
}

TEST(ReportTest, AJobWithoutStepsOrWithFiguresThatAreNotNumbersStillHasAPage) {
  ReportInput empty;
  empty.job.set_job_id("job-2");
  EXPECT_TRUE(IsBalanced(ReportHtml(empty)));
  ReportInput odd = SomeInput(3);
  odd.steps[1].set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
  odd.steps[2].set_reward_mean(std::numeric_limits<double>::infinity());
  odd.steps[2].mutable_parity()->set_logprob_difference_max(NAN);
  const std::string html = ReportHtml(odd);
  EXPECT_TRUE(IsBalanced(html));
  EXPECT_NE(html.find("class=\"bad\">0 of 300"), std::string::npos);
  EXPECT_TRUE(IsBalanced(ReportHtml(SomeInput(1))));
  EXPECT_TRUE(IsBalanced(ReportHtml(SomeInput(300))));
}

TEST(SvgChartTest, TicksAreRoundAndCoverTheRange) {
  EXPECT_EQ(NiceTicks(0, 1, 4), (std::vector<double>{0, 0.5, 1}));
  EXPECT_EQ(NiceTicks(0, 4, 4), (std::vector<double>{0, 1, 2, 3, 4}));
  EXPECT_EQ(NiceTicks(-3, 7, 4).front(), -5);
  for (const double high : {1e-9, 0.3, 17.0, 123456.0, 1e12}) {
    const auto ticks = NiceTicks(0, high, 4);
    EXPECT_LE(ticks.front(), 0);
    EXPECT_GE(ticks.back(), high * (1 - 1e-9));
    EXPECT_LE(ticks.size(), 7u) << high;
  }
  EXPECT_EQ(NiceTicks(2, 2, 4), std::vector<double>{2});
}

}  // namespace
}  // namespace titan::cli
