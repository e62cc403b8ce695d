// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/peer.h"

#include <string>
#include <string_view>
#include <utility>

namespace titan::rpc {
namespace {

constexpr std::string_view kDoesNotServe = "; what answers there does not serve ";

std::string DaemonOf(std::string_view method) {
  for (const auto& [area, daemon] : {std::pair("orchestrator", "an orchestrator"),
                                     {"weightstore", "a weight store"},
                                     {"generator", "a generator"},
                                     {"trainer", "a trainer"},
                                     {"reward", "a reward service"}}) {
    if (method.starts_with(std::string("/titan.") + area + ".")) return daemon;
  }
  return "another daemon";
}

}  // namespace

grpc::Status NotServed(const std::string& address, const std::string& method) {
  return grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                      "expected " + DaemonOf(method) + " at " + address +
                          std::string(kDoesNotServe) + method.substr(1) +
                          ": it is another daemon, or of another version");
}

// gRPC tells the two apart in its text alone.
Peer PeerOf(const grpc::Status& status) {
  const std::string& said = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
      said.find(kDoesNotServe) != std::string::npos) {
    return Peer::kOther;
  }
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
