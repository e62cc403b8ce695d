// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/remote_lease.h"

namespace titan::weightstore {

std::string_view NameOf(Lane lane) {
  switch (lane) {
    case Lane::kMap:
      return "map";
    case Lane::kTcp:
      return "tcp";
    case Lane::kRdma:
      return "rdma";
    case Lane::kShmTest:
      return "shm-test";
  }
  return "?";
}

}  // namespace titan::weightstore
