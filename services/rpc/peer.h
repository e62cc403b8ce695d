// SPDX-License-Identifier: Apache-2.0
//
// Who is at the address of a call that was not served. Pure functions, any thread.
#ifndef TITAN_SERVICES_RPC_PEER_H_
#define TITAN_SERVICES_RPC_PEER_H_

#include <grpcpp/support/status.h>

#include <string>

namespace titan::rpc {

enum class Peer {
  kUnknown,   // the call failed otherwise, or did not
  kNobody,    // nothing listens there
  kStranger,  // something took the connection and does not speak gRPC; or its process is stopped
  kOther,     // a server that does not have the method: another daemon, or of another version
};
Peer PeerOf(const grpc::Status& status);

// Of a call to /titan.<area>.v1.<Service>/<Method> that the server at `address` does not have: what
// was expected, asked, and where. kOther is told by it.
grpc::Status NotServed(const std::string& address, const std::string& method);

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_PEER_H_
