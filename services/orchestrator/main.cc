// SPDX-License-Identifier: Apache-2.0
//
// titan-orchestrator. Threads: see services/rpc/daemon.h; what runs where: daemon.h.
#include "services/orchestrator/daemon.h"

int main(int argc, char** argv) {
  return titan::rpc::DaemonMain(argc, argv, titan::orchestrator::MakeDaemonSpec());
}
