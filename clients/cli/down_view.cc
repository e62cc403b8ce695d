// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/down_view.h"

#include <fmt/format.h>

#include "clients/cluster/job_client.h"
#include "clients/cluster/terminal.h"

namespace titan::cli {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol

JobsAtDown SortForDown(const ListJobsResponse& jobs) {
  JobsAtDown sorted;
  std::vector<Job> queued;
  for (const Job& job : jobs.jobs()) {
    if (job.state() == JOB_STATE_QUEUED) {
      queued.push_back(job);
    } else if (job.state() == JOB_STATE_STARTING) {
      sorted.kept.push_back(job);
    } else if (!cluster::IsFinal(job.state())) {
      sorted.ended.push_back(job);
    }
  }
  sorted.kept.insert(sorted.kept.end(), queued.begin(), queued.end());
  return sorted;
}

std::string FormatJobsAtDown(const JobsAtDown& jobs, const std::string& up) {
  if (jobs.ended.empty() && jobs.kept.empty()) return "no job runs or waits\n";
  std::string text;
  for (const Job& job : jobs.ended) {
    const std::string name = job.name().empty() ? "" : " (" + cluster::Printable(job.name()) + ")";
    text +=
        fmt::format("{}{} is {}, {} of {} steps done: it ends with the cluster{}\n", job.job_id(),
                    name, cluster::NameOf(job.state()), job.steps_done(), job.steps_total(),
                    job.state() == JOB_STATE_RUNNING
                        ? " and is not resumed, and its newest version is kept; submit it again "
                          "after the next start"
                        : "");
  }
  if (jobs.kept.empty()) return text;
  const size_t num = jobs.kept.size();
  text += fmt::format("{} job{} not begun and stay{} queued; {} runs {}: ", num,
                      num == 1 ? " has" : "s have", num == 1 ? "s" : "", up,
                      num == 1 ? "it" : "them in this order");
  for (size_t i = 0; i < num; ++i) {
    text += (i == 0 ? "" : ", ") + jobs.kept[i].job_id();
  }
  return text + "\n";
}

}  // namespace titan::cli
