// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/peer_status.h"

#include "clients/cluster/cluster.h"
#include "clients/cluster/terminal.h"
#include "services/rpc/peer.h"
#include "services/rpc/status_convert.h"

namespace titan::cluster {

Status FromPeer(const grpc::Status& status, const std::string& daemon, const std::string& reason,
                const std::string& fix) {
  const Status said = rpc::FromGrpc(status);
  if (rpc::PeerOf(status) == rpc::Peer::kOther) {
    return rpc::WithReason(said, "WRONG_DAEMON",
                           "give the address of the " + daemon +
                               "; titanctl status --data FOLDER shows those of a cluster");
  }
  if (rpc::PeerOf(status) == rpc::Peer::kUnknown) return said;
  return rpc::WithReason(Annotate(said, "the " + daemon + " does not answer"), reason, fix);
}

std::string FixOfGone(const std::string& data_folder) {
  return "see what runs with: titanctl status --data " + ShellWord(data_folder) +
         "; start the cluster anew with: " + RestartCommand(data_folder);
}

}  // namespace titan::cluster
