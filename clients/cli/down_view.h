// SPDX-License-Identifier: Apache-2.0
//
// What the end of a cluster does to its jobs, as people read it. Pure; any thread.
#ifndef TITAN_CLIENTS_CLI_DOWN_VIEW_H_
#define TITAN_CLIENTS_CLI_DOWN_VIEW_H_

#include <string>
#include <vector>

#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::cli {

struct JobsAtDown {
  std::vector<orchestrator::v1::Job> ended;  // by the end of the cluster: RUNNING, STOPPING
  std::vector<orchestrator::v1::Job> kept;   // STARTING, then QUEUED: they run after the next start
};
JobsAtDown SortForDown(const orchestrator::v1::ListJobsResponse& jobs);

// A line or more, each with its end; names and ids in full. `up` is the command that starts the
// cluster.
std::string FormatJobsAtDown(const JobsAtDown& jobs, const std::string& up);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_DOWN_VIEW_H_
