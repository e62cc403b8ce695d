// SPDX-License-Identifier: Apache-2.0
//
// result.json of the demo. Pure functions.
#ifndef TITAN_CLIENTS_DEMO_DEMO_RESULT_H_
#define TITAN_CLIENTS_DEMO_DEMO_RESULT_H_

#include <string>
#include <vector>

#include "clients/cluster/process_group.h"
#include "clients/cluster/progress.h"
#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::demo {

// Why the demo failed, one sentence each; empty: it is a success.
std::vector<std::string> Failures(const orchestrator::v1::Job& job,
                                  const cluster::JobProgress& progress);

// `processes` after they have ended. Values that were not reached are null.
std::string ResultText(const orchestrator::v1::Job& job, const cluster::JobProgress& progress,
                       const std::vector<cluster::ProcessState>& processes,
                       const std::vector<std::string>& failures);

}  // namespace titan::demo

#endif  // TITAN_CLIENTS_DEMO_DEMO_RESULT_H_
