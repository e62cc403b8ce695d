// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/job_view.h"

#include <fmt/format.h>

#include <vector>

#include "clients/cluster/job_client.h"
#include "clients/cluster/progress.h"
#include "services/rpc/config.h"

namespace titan::cli {
namespace {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol

cluster::Color ColorOf(JobState state) {
  switch (state) {
    case JOB_STATE_SUCCEEDED:
      return cluster::Color::kGreen;
    case JOB_STATE_FAILED:
      return cluster::Color::kRed;
    case JOB_STATE_CANCELLED:
      return cluster::Color::kYellow;
    default:
      return cluster::Color::kBold;
  }
}

// From submission to the end, or to now.
std::string Age(const Job& job, int64_t now_unix_ms) {
  const int64_t end = job.ended_unix_ms() > 0 ? job.ended_unix_ms() : now_unix_ms;
  return cluster::FormatSeconds(static_cast<double>(end - job.submitted_unix_ms()) / 1e3);
}

std::string Accuracy(const Job& job) {
  for (int i = job.evaluations_size() - 1; i >= 0; --i) {
    const EvaluationReport& report = job.evaluations(i);
    if (report.skipped_reason().empty()) return fmt::format("{:.3f}", report.accuracy());
  }
  return "-";
}

}  // namespace

int ExitCodeOf(const Job& job) {
  switch (job.state()) {
    case JOB_STATE_SUCCEEDED:
      return kExitOk;
    case JOB_STATE_CANCELLED:
      return kExitJobCancelled;
    default:
      return kExitJobFailed;
  }
}

std::string DoingOf(const ListJobsResponse& jobs) {
  std::string text = "ready", waits;
  size_t queued = 0;
  for (const Job& job : jobs.jobs()) {
    if (job.state() == JOB_STATE_QUEUED) ++queued;
    if (job.state() == JOB_STATE_QUEUED && waits.empty() && !job.reason().empty()) {
      waits = " (" + job.job_id() + " " + job.reason() + ")";
    }
    if (job.state() == JOB_STATE_QUEUED || cluster::IsFinal(job.state())) continue;
    text += ", " + job.job_id() + " is " + cluster::NameOf(job.state());
  }
  if (queued > 0) text += fmt::format(", {} queued{}", queued, waits);
  return queued > 0 || text.size() > 5 ? text : text + ", no job to do";
}

std::string FormatJobs(const ListJobsResponse& jobs, int64_t now_unix_ms,
                       const cluster::Terminal& terminal) {
  if (jobs.jobs().empty()) return "no jobs; submit one with: titanctl submit FILE\n";
  std::vector<std::vector<cluster::Cell>> rows = {
      {"JOB", "NAME", "STATE", "STEPS", "REWARD", "ACCURACY", "TIME", "REASON"}};
  for (const Job& job : jobs.jobs()) {
    rows.push_back(
        {job.job_id(),
         job.name().empty() ? "-" : job.name(),
         {cluster::NameOf(job.state()), ColorOf(job.state())},
         fmt::format("{}/{}", job.steps_done(), job.steps_total()),
         job.has_last_step() ? fmt::format("{:.3f}", job.last_step().reward_mean()) : "-",
         Accuracy(job),
         Age(job, now_unix_ms),
         job.reason()});
  }
  return cluster::FormatTable(rows, terminal);
}

std::string FormatJob(const Job& job, int64_t now_unix_ms, const cluster::Terminal& terminal) {
  std::string text =
      fmt::format("{}{}  {}\n", job.job_id(),
                  job.name().empty() ? "" : "  " + cluster::PrintableLine(job.name()),
                  terminal.Paint(ColorOf(job.state()), cluster::NameOf(job.state())));
  if (!job.reason().empty()) {
    text += fmt::format("reason      {}\n", cluster::PrintableLine(job.reason()));
  }
  text += fmt::format("run         {}\n", job.run_id());
  text += fmt::format("steps       {} of {}\n", job.steps_done(), job.steps_total());
  text += fmt::format("time        {} since it was submitted\n", Age(job, now_unix_ms));
  text += fmt::format("parity      {}\n", cluster::FormatParity(job.parity()));
  if (job.has_last_step()) {
    const StepReport& step = job.last_step();
    text += fmt::format(
        "last step   step {}: reward {:.3f}, groups {}/{}, loss {:.4g}, gradient norm {:.4g}\n",
        step.step(), step.reward_mean(), step.groups_trained(),
        step.groups_trained() + step.groups_untrainable(), step.loss(), step.gradient_norm());
    text +=
        fmt::format("weights     version {}, digest {}\n", step.version(), step.weights_digest());
  }
  if (!job.evaluations().empty()) {
    std::vector<std::vector<std::string>> rows = {
        {"EVALUATED", "ACCURACY", "CORRECT", "TOKENS A REPLY", "SINCE RUNNING"}};
    for (const EvaluationReport& report : job.evaluations()) {
      const bool made = report.skipped_reason().empty();
      rows.push_back({fmt::format("version {}", report.version()),
                      made ? fmt::format("{:.3f}", report.accuracy()) : "-",
                      made ? fmt::format("{}/{}", report.correct(), report.questions())
                           : "not made: " + report.skipped_reason(),
                      made ? fmt::format("{:.1f}", report.completion_tokens_mean()) : "-",
                      made ? cluster::FormatSeconds(report.seconds_since_running()) : "-"});
    }
    text += "\n" + cluster::FormatTable(rows);
  }
  text += "\nspec\n" + cluster::Printable(rpc::ToJsonText(job.spec(), /*all_fields=*/false)) + "\n";
  return text;
}

}  // namespace titan::cli
