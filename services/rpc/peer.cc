// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/peer.h"

#include <string>

namespace titan::rpc {

// gRPC tells the two apart in its text alone.
Peer PeerOf(const grpc::Status& status) {
  const std::string& said = status.error_message();
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE ||
      !said.starts_with("failed to connect to all addresses")) {
    return Peer::kUnknown;
  }
  return said.find("Failed to connect to remote host") != std::string::npos ? Peer::kNobody
                                                                            : Peer::kStranger;
}

}  // namespace titan::rpc
