// SPDX-License-Identifier: Apache-2.0
//
// Which lane this generator pulls versions by, decided at its start. Control strand.
#ifndef TITAN_SERVICES_GENERATOR_PULL_LANE_H_
#define TITAN_SERVICES_GENERATOR_PULL_LANE_H_

#include <memory>

#include "core/base/status.h"
#include "core/runtime/metrics.h"
#include "core/transport/rma.h"
#include "titan/config/v1/daemons.pb.h"

namespace titan::services {

// Null: it maps the slots of its host, or pulls over TCP. FailedPrecondition: require_rdma, and
// this machine has no device.
StatusOr<std::shared_ptr<transport::RmaDomain>> OpenPullLane(
    const config::v1::GeneratorConfig& config, runtime::Metrics& metrics);

}  // namespace titan::services

#endif  // TITAN_SERVICES_GENERATOR_PULL_LANE_H_
