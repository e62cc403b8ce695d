// SPDX-License-Identifier: Apache-2.0
//
// The metrics of versions that a generator pulls. They are there, and stay 0, where it maps.
#ifndef TITAN_SERVICES_GENERATOR_PULL_METRICS_H_
#define TITAN_SERVICES_GENERATOR_PULL_METRICS_H_

#include <atomic>
#include <map>

#include "core/runtime/metrics.h"
#include "weightstore/transport/puller.h"

namespace titan::services {

// Thread-safe, but for Use. Handles are copied; `metrics` must outlive them.
class PullMetrics {
 public:
  explicit PullMetrics(runtime::Metrics& metrics);

  // The lane by which a version came, or the first one will. Control strand.
  void Use(weightstore::Lane lane);
  void Count(const weightstore::lanes::PullReport& report);
  // Of the last pull that succeeded.
  weightstore::Lane last_lane() const { return last_lane_; }
  void AddMemory(double num_bytes) { memory_.Add(num_bytes); }

 private:
  runtime::Histogram open_, transfer_, verify_;
  runtime::Counter bytes_, corrupt_;
  runtime::Gauge memory_;
  std::atomic<weightstore::Lane> last_lane_{weightstore::Lane::kTcp};
  std::map<weightstore::Lane, runtime::Gauge> lanes_;
};

}  // namespace titan::services

#endif  // TITAN_SERVICES_GENERATOR_PULL_METRICS_H_
