// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/rma_lane.h"

#include <utility>
#include <vector>

#include "core/transport/rma_probe.h"

namespace titan::weightstore::lanes {
namespace {

using titan::transport::RmaDomain;
using titan::transport::RmaOptions;

std::string Joined(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ", ") + name;
  return joined.empty() ? "nothing" : joined;
}

// Of the device that is named, or of any: "rc_mlx5/mlx5_0:1" is mlx5_0:1's.
bool Has(const std::vector<std::string>& transports, const std::string& device) {
  for (const std::string& one : transports) {
    if (device.empty() || one.substr(one.find('/') + 1) == device) return true;
  }
  return false;
}

StatusOr<OpenedLane> OpenTestLane(const RmaWanted& wanted) {
  RmaOptions options;
  options.lane = titan::transport::RmaLane::kShmTest;
  options.registered = wanted.registered;
  TITAN_ASSIGN_OR_RETURN(auto domain, RmaDomain::Open(options));
  return OpenedLane{std::move(domain), "shared memory in place of an RDMA device"};
}

// FailedPrecondition or ResourceExhausted: why there is none.
StatusOr<OpenedLane> OpenDevice(const RmaWanted& wanted) {
  TITAN_ASSIGN_OR_RETURN(const auto found, titan::transport::FindTransports());
  if (!Has(found.rdma, wanted.device)) {
    const std::string which = wanted.device.empty() ? "device" : "device " + wanted.device;
    const std::string rdma = found.rdma.empty() ? "" : Joined(found.rdma) + ", ";
    return FailedPrecondition(
        "this machine has no RDMA " + which + ", UCX finds " + rdma + Joined(found.others) +
        " (sockets and shared memory do not count); `ucx_info -d` lists them");
  }
  TITAN_RETURN_IF_ERROR(titan::transport::CheckLockable(wanted.lock_bytes, "weights",
                                                        titan::transport::ReadLockLimit()));
  RmaOptions options;
  options.device = wanted.device;
  options.registered = wanted.registered;
  TITAN_ASSIGN_OR_RETURN(auto domain, RmaDomain::Open(options));
  return OpenedLane{std::move(domain), Joined(found.rdma)};
}

}  // namespace

StatusOr<OpenedLane> OpenRmaLane(const RmaWanted& wanted) {
  auto lane = wanted.shm_test ? OpenTestLane(wanted) : OpenDevice(wanted);
  if (lane.ok()) return lane;
  if (wanted.required || wanted.shm_test || !wanted.device.empty()) {
    const char* const asked = wanted.required   ? "require_rdma"
                              : wanted.shm_test ? "daemon.debug.shm_test_lane"
                                                : "rdma_device";
    return FailedPrecondition(std::string(asked) + " is set, but " + MessageOf(lane.status()));
  }
  return OpenedLane{nullptr, MessageOf(lane.status())};
}

Lane LaneOf(const RmaDomain& domain) {
  return domain.lane() == titan::transport::RmaLane::kRdma ? Lane::kRdma : Lane::kShmTest;
}

}  // namespace titan::weightstore::lanes
