// SPDX-License-Identifier: Apache-2.0
#include "services/generator/pull_lane.h"

#include "core/runtime/log.h"
#include "weightstore/transport/rma_lane.h"

namespace titan::services {

StatusOr<std::shared_ptr<transport::RmaDomain>> OpenPullLane(
    const config::v1::GeneratorConfig& config, runtime::Metrics& metrics) {
  auto bytes = metrics.AddGauge("titan_generator_registered_bytes",
                                "Memory that is registered for one-sided reads from other hosts");
  const bool shm_test = config.daemon().debug().shm_test_lane();
  weightstore::lanes::RmaWanted wanted{.required = config.require_rdma(),
                                       .shm_test = shm_test,
                                       .device = config.rdma_device(),
                                       .registered = {}};
  const auto& debug = config.daemon().debug();
  if (debug.has_shm_test_lock_bytes()) wanted.shm_test_lock_bytes = debug.shm_test_lock_bytes();
  wanted.registered = [bytes](double change) mutable { bytes.Add(change); };
  TITAN_ASSIGN_OR_RETURN(const auto opened, weightstore::lanes::OpenRmaLane(wanted));
  if (opened.domain == nullptr) {
    TITAN_LOG(kInfo, "no_rdma", {"because", opened.found}, {"next", "pulls go over TCP"});
  } else if (shm_test) {
    TITAN_LOG(kWarning, "test_lane", {"setting", "daemon.debug.shm_test_lane"},
              {"means", "pulls over shared memory in place of an RDMA device; for tests alone"});
  } else {
    TITAN_LOG(kInfo, "rdma_found", {"devices", opened.found});
  }
  return opened.domain;
}

}  // namespace titan::services
