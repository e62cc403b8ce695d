// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/peer_status.h"

#include "clients/cluster/cluster.h"
#include "clients/cluster/terminal.h"
#include "services/rpc/status_convert.h"

namespace titan::cluster {

Status FromPeer(const grpc::Status& status, const std::string& daemon, const std::string& reason,
                const std::string& fix) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE ||
      !status.error_message().starts_with("failed to connect to all addresses")) {
    return rpc::FromGrpc(status);
  }
  return rpc::WithReason(
      Unavailable("the " + daemon + " does not answer: nothing listens at its address"), reason,
      fix);
}

std::string FixOfGone(const std::string& data_folder) {
  return "see what runs with: titanctl status --data " + ShellWord(data_folder) +
         "; start the cluster anew with: " + RestartCommand(data_folder);
}

}  // namespace titan::cluster
