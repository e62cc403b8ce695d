// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/reports.h"

#include <cmath>
#include <string_view>
#include <utility>

namespace titan::orchestrator {

void ParityTotals::Add(const ParityTotals& other) {
  // NaN is the worst difference there is and stays.
  if (std::isnan(other.logprob_difference_max) ||
      other.logprob_difference_max > logprob_difference_max) {
    logprob_difference_max = other.logprob_difference_max;
  }
  tokens_differing += other.tokens_differing;
  tokens_compared += other.tokens_compared;
}

StepReport CanonicalOf(StepReport report) {
  report.phases = {};
  report.samples_per_pack_min = 0;
  report.sequences_running_max = 0;
  report.generated_tokens_per_second = 0;
  report.generator_shares.clear();
  report.generated_before_previous_commit = false;
  return report;
}

EvaluationReport CanonicalOf(EvaluationReport report) {
  report.seconds_since_running = 0;
  return report;
}

bool SubmittedBefore(const JobInfo& a, const JobInfo& b) {
  return std::pair(a.job_id.size(), std::string_view(a.job_id)) <
         std::pair(b.job_id.size(), std::string_view(b.job_id));
}

}  // namespace titan::orchestrator
