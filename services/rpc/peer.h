// SPDX-License-Identifier: Apache-2.0
//
// Who is at the address of a call that could not be sent. Pure functions, any thread.
#ifndef TITAN_SERVICES_RPC_PEER_H_
#define TITAN_SERVICES_RPC_PEER_H_

#include <grpcpp/support/status.h>

namespace titan::rpc {

enum class Peer {
  kUnknown,   // the call failed otherwise, or did not
  kNobody,    // nothing listens there
  kStranger,  // something took the connection and does not speak gRPC; or its process is stopped
};
Peer PeerOf(const grpc::Status& status);

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_PEER_H_
