// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/peer.h"

#include <string>
#include <string_view>

namespace titan::rpc {

// gRPC tells the two apart in its text alone.
Peer PeerOf(const grpc::Status& status) {
  const std::string& said = status.error_message();
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE ||
      !said.starts_with("failed to connect to all addresses")) {
    return Peer::kUnknown;
  }
  const auto says = [&said](std::string_view words) { return said.find(words) != said.npos; };
  if (says("Failed to connect to remote host")) return Peer::kNobody;
  const bool stranger = says("http1.x server") || says("SETTINGS frame") || says("Socket closed") ||
                        says("Endpoint closing") || says("Connection reset by peer");
  return stranger ? Peer::kStranger : Peer::kUnknown;
}

}  // namespace titan::rpc
