// SPDX-License-Identifier: Apache-2.0
//
// The report of a job: one HTML file that needs nothing else: curves as inline SVG, samples of the
// first and the last step side by side, every step as a table, the spec. Pure functions, any
// thread.
#ifndef TITAN_CLIENTS_CLI_REPORT_H_
#define TITAN_CLIENTS_CLI_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "titan/orchestrator/v1/orchestrator.pb.h"

namespace titan::cli {

struct ReportInput {
  orchestrator::v1::Job job;
  std::vector<orchestrator::v1::StepReport> steps;
  std::vector<orchestrator::v1::EvaluationReport> evaluations;
  std::vector<orchestrator::v1::ListRolloutsResponse> first, last;  // groups of these steps
  int64_t made_unix_ms = 0;
};

std::string ReportHtml(const ReportInput& input);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_REPORT_H_
