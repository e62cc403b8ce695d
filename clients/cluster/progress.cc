// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "clients/cluster/job_client.h"

namespace titan::cluster {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol

namespace {

constexpr size_t kStepsForRate = 5;

bool Differs(const ParityTotals& parity) {
  return parity.tokens_differing() > 0 || parity.logprob_difference_max() != 0;
}

}  // namespace

std::string FormatParity(const ParityTotals& parity) {
  if (parity.tokens_compared() == 0) return "not checked";
  return fmt::format("log-prob difference max {:g}, tokens differing {} of {}",
                     parity.logprob_difference_max(), parity.tokens_differing(),
                     parity.tokens_compared());
}

std::string JobProgress::OnEvent(const WatchJobResponse& event) {
  switch (event.event_case()) {
    case WatchJobResponse::kStateChanged: {
      job_ = event.state_changed();
      std::string text = fmt::format("job {}: {}", job_.job_id(), NameOf(job_.state()));
      if (!job_.reason().empty()) text += fmt::format(" ({})", PrintableLine(job_.reason()));
      const Color color = job_.state() == JOB_STATE_FAILED      ? Color::kRed
                          : job_.state() == JOB_STATE_SUCCEEDED ? Color::kGreen
                                                                : Color::kBold;
      return terminal_.Paint(color, text) + "\n";
    }
    case WatchJobResponse::kStepDone:
      steps_.push_back(event.step_done());
      return StepLine(event.step_done());
    case WatchJobResponse::kEvaluationDone: {
      const EvaluationReport& report = event.evaluation_done();
      evaluations_.push_back(report);
      if (!report.skipped_reason().empty()) {
        return fmt::format("evaluation of version {} was not made: {}\n", report.version(),
                           PrintableLine(report.skipped_reason()));
      }
      return terminal_.Paint(
                 Color::kBold,
                 fmt::format(
                     "evaluation of version {}: accuracy {:.3f} ({} of {}), {:.1f} tokens a "
                     "reply, {} since the start",
                     report.version(), report.accuracy(), report.correct(), report.questions(),
                     report.completion_tokens_mean(),
                     FormatSeconds(report.seconds_since_running()))) +
             "\n";
    }
    case WatchJobResponse::kMessage:
      return Printable(event.message()) + "\n";
    case WatchJobResponse::EVENT_NOT_SET:
      return "";
  }
  return "";
}

std::string JobProgress::StepLine(const StepReport& step) const {
  std::string accuracy = "-";
  for (const EvaluationReport& report : evaluations_) {
    if (report.skipped_reason().empty()) accuracy = fmt::format("{:.3f}", report.accuracy());
  }
  const std::string parity = FormatParity(step.parity());
  const size_t digits = std::to_string(job_.steps_total()).size();
  // Steps count from 0, as everywhere; what is done counts from 1.
  return fmt::format(
      "step {:>3} ({:>{}}/{})  reward {:.3f}  accuracy {:>5}  groups {}/{}  {:4.0f} tokens/s  {}  "
      "left {}\n",
      step.step(), step.step() + 1, digits, job_.steps_total(), step.reward_mean(), accuracy,
      step.groups_trained(), step.groups_trained() + step.groups_untrainable(),
      step.generated_tokens_per_second(),
      terminal_.Paint(Differs(step.parity()) ? Color::kRed : Color::kNone, parity),
      FormatSeconds(SecondsLeft()));
}

double JobProgress::SecondsLeft() const {
  double wall = 0;
  const size_t n = std::min(steps_.size(), kStepsForRate);
  for (size_t i = steps_.size() - n; i < steps_.size(); ++i) wall += steps_[i].phases().wall();
  const double done = static_cast<double>(steps_.size());
  const double left = std::max(0.0, static_cast<double>(job_.steps_total()) - done);
  return n == 0 ? std::numeric_limits<double>::quiet_NaN() : wall / static_cast<double>(n) * left;
}

ParityTotals JobProgress::parity() const {
  ParityTotals total;
  for (const StepReport& step : steps_) {
    total.set_tokens_compared(total.tokens_compared() + step.parity().tokens_compared());
    total.set_tokens_differing(total.tokens_differing() + step.parity().tokens_differing());
    // A NaN must not hide: it is taken over, and nothing is greater than it afterwards.
    const double difference = step.parity().logprob_difference_max();
    if (std::isnan(difference) || difference > total.logprob_difference_max()) {
      total.set_logprob_difference_max(difference);
    }
  }
  return total;
}

uint32_t JobProgress::samples_per_pack_min() const {
  uint32_t least = 0;
  for (const StepReport& step : steps_) {
    if (step.samples_per_pack_min() == 0) continue;
    least = least == 0 ? step.samples_per_pack_min() : std::min(least, step.samples_per_pack_min());
  }
  return least;
}

uint32_t JobProgress::sequences_running_max() const {
  uint32_t most = 0;
  for (const StepReport& step : steps_) most = std::max(most, step.sequences_running_max());
  return most;
}

double JobProgress::overlap_share() const {
  double steps = 0, overlapped = 0;
  for (const StepReport& step : steps_) {
    if (step.step() == 0) continue;
    ++steps;
    overlapped += step.generated_before_previous_commit();
  }
  return steps == 0 ? 0 : overlapped / steps;
}

std::string JobProgress::Summary() const {
  if (steps_.empty()) {
    return fmt::format("no step{} was done; there is nothing to compare or to plot\n",
                       job_.steps_total() > 0 ? fmt::format(" of {}", job_.steps_total()) : "");
  }
  std::string text;
  PlotSeries rewards{'*', "sampled reward of a step", {}};
  PlotSeries accuracy{'O', "greedy accuracy on held-out questions", {}};
  for (const StepReport& step : steps_) {
    rewards.points.emplace_back(static_cast<double>(step.step()), step.reward_mean());
  }
  for (const EvaluationReport& report : evaluations_) {
    if (!report.skipped_reason().empty()) continue;
    accuracy.points.emplace_back(static_cast<double>(report.version()), report.accuracy());
  }
  text += FormatPlot({rewards, accuracy}, static_cast<double>(steps_.back().step()) + 1, "step");
  const ParityTotals total = parity();
  const bool good = total.tokens_compared() > 0 && !Differs(total);
  text += terminal_.Paint(good ? Color::kGreen : Color::kRed,
                          "parity of rollout and training: " + FormatParity(total)) +
          "\n";
  if (samples_per_pack_min() > 0) {
    text += fmt::format("compared packs held at least {} samples; ", samples_per_pack_min());
  }
  text += fmt::format("the largest generator batch held {} sequences\n", sequences_running_max());
  if (steps_.size() > 1) {
    text += fmt::format("{:.0f} % of the steps were generated while the step before was trained\n",
                        overlap_share() * 100);
  }
  return text;
}

}  // namespace titan::cluster
