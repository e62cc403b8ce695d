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

// Of all that is pulled: with weightstore_socket what this host's store does not have, else every
// version. Null: over TCP. FailedPrecondition: what is required or named is not on this machine.
StatusOr<std::shared_ptr<transport::RmaDomain>> OpenPullLane(
    const config::v1::GeneratorConfig& config, runtime::Metrics& metrics);

}  // namespace titan::services

#endif  // TITAN_SERVICES_GENERATOR_PULL_LANE_H_
