// SPDX-License-Identifier: Apache-2.0
// titan-weightstore. Threads: services/rpc/daemon.h and weightstore_daemon.h.
#include "services/rpc/daemon.h"
#include "services/weightstore/weightstore_daemon.h"

int main(int argc, char** argv) {
  return titan::rpc::DaemonMain<titan::config::v1::WeightStoreConfig>(
      argc, argv, titan::weightstore::WeightStoreDaemonSpec());
}
