// SPDX-License-Identifier: Apache-2.0
//
// What a call to a daemon of the cluster failed with, in words for a person. Any thread.
#ifndef TITAN_CLIENTS_CLUSTER_PEER_STATUS_H_
#define TITAN_CLIENTS_CLUSTER_PEER_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "core/base/status.h"

namespace titan::cluster {

// The status as rpc::FromGrpc gives it; gRPC's own words for a peer that is not there name sockets
// and nothing that a person could do, so that one becomes Unavailable with `reason` and `fix`.
// Another daemon at its address is Unimplemented with the reason WRONG_DAEMON and a fix.
// daemon: "orchestrator", "weight store".
Status FromPeer(const grpc::Status& status, const std::string& daemon, const std::string& reason,
                const std::string& fix);

// What to do about a daemon of the cluster in this folder that is not there.
std::string FixOfGone(const std::string& data_folder);

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_PEER_STATUS_H_
