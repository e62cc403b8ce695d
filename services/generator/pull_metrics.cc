// SPDX-License-Identifier: Apache-2.0
#include "services/generator/pull_metrics.h"

#include "core/runtime/log.h"

namespace titan::services {
namespace {

runtime::Histogram OfPhase(runtime::Metrics& metrics, const char* phase) {
  return metrics.AddHistogram("titan_generator_pull_seconds",
                              "Time to pull a version from another host, by what it was spent on",
                              runtime::SecondsBuckets(), {{"phase", phase}});
}

}  // namespace

PullMetrics::PullMetrics(runtime::Metrics& metrics)
    : open_(OfPhase(metrics, "open")),
      transfer_(OfPhase(metrics, "transfer")),
      verify_(OfPhase(metrics, "verify")),
      bytes_(metrics.AddCounter("titan_generator_pulled_bytes_total",
                                "Bytes of versions that came from another host")),
      corrupt_(metrics.AddCounter(
          "titan_generator_pull_corrupt_total",
          "Answers, or whole versions, that did not arrive as they were sent; must stay 0")),
      memory_(metrics.AddGauge("titan_generator_pull_memory_bytes",
                               "Memory of pulled versions, and of the spare for the next one")) {
  using weightstore::Lane;
  for (const Lane lane : {Lane::kMap, Lane::kTcp, Lane::kRdma, Lane::kShmTest}) {
    lanes_[lane] = metrics.AddGauge(
        "titan_generator_lane", "1 for the way in which the last version came, or the next will",
        {{"lane", std::string(weightstore::NameOf(lane))}});
  }
}

void PullMetrics::Use(weightstore::Lane lane) {
  for (auto& [other, gauge] : lanes_) gauge.Set(other == lane ? 1 : 0);
}

void PullMetrics::Count(const weightstore::lanes::PullReport& report) {
  if (report.complete) last_lane_ = report.lane;
  open_.Observe(report.open_seconds);
  transfer_.Observe(report.transfer_seconds);
  verify_.Observe(report.verify_seconds);
  bytes_.Add(static_cast<double>(report.num_bytes));
  if (report.corrupt == 0) return;
  corrupt_.Add(static_cast<double>(report.corrupt));
  TITAN_LOG(kError, "pull_corrupt", {"lane", weightstore::NameOf(report.lane)},
            {"corrupt", report.corrupt}, {"bytes", report.num_bytes});
}

}  // namespace titan::services
