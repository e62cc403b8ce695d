// SPDX-License-Identifier: Apache-2.0
//
// titan-weightstore: leader and host daemon in one process, or one of them.
//
// Threads beside those of every daemon (services/rpc/daemon.h): one that serves the unix socket,
// and a few that serve the TCP lane where there is a data plane.
// The control strand decides nothing: Leader and Host have locks of their own, because the socket's
// thread must not wait for the strand.
#ifndef TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_DAEMON_H_
#define TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_DAEMON_H_

#include <memory>
#include <string>

#include "core/base/status.h"
#include "services/rpc/daemon.h"
#include "titan/config/v1/daemons.pb.h"

namespace titan::weightstore {

// Role, config defaults, checks and construction, for rpc::DaemonMain.
rpc::DaemonSpec<config::v1::WeightStoreConfig> WeightStoreDaemonSpec();

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_WEIGHTSTORE_DAEMON_H_
