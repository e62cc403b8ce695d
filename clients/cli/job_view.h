// SPDX-License-Identifier: Apache-2.0
//
// How jobs look on a terminal. Pure functions, any thread.
#ifndef TITAN_CLIENTS_CLI_JOB_VIEW_H_
#define TITAN_CLIENTS_CLI_JOB_VIEW_H_

#include <cstdint>
#include <string>

#include "clients/cli/exit_codes.h"
#include "clients/cluster/terminal.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::cli {

// The exit code of who waited for the job.
int ExitCodeOf(const orchestrator::v1::Job& job);

// What the orchestrator does, for people: "ready, job-2 is RUNNING, 1 queued"; of a queue that
// waits for more than its turn why: "ready, 1 queued (job-2 waits: no trainer)".
std::string DoingOf(const orchestrator::v1::ListJobsResponse& jobs);
// One row a job, in the order given; a sentence when there is none. `now_unix_ms` dates those that
// run.
std::string FormatJobs(const orchestrator::v1::ListJobsResponse& jobs, int64_t now_unix_ms,
                       const cluster::Terminal& terminal);
// State, progress, results and the spec of one job.
std::string FormatJob(const orchestrator::v1::Job& job, int64_t now_unix_ms,
                      const cluster::Terminal& terminal);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_JOB_VIEW_H_
