// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/rma_lane.h"

#include <utility>
#include <vector>

namespace titan::weightstore::lanes {
namespace {

using titan::transport::FoundTransports;
using titan::transport::LockLimit;
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

// The setting that asks for a lane; null: none does.
const char* AskedBy(const RmaWanted& wanted) {
  if (wanted.required) return "require_rdma";
  if (wanted.shm_test) return "daemon.debug.shm_test_lane";
  return wanted.device.empty() ? nullptr : "rdma_device";
}

// There is no lane: an error where one was asked for.
StatusOr<LaneChoice> Without(const RmaWanted& wanted, std::string why) {
  const char* const asked = AskedBy(wanted);
  if (asked == nullptr) return LaneChoice{false, std::move(why)};
  return FailedPrecondition(std::string(asked) + " is set, but " + why);
}

std::string NoDevice(const RmaWanted& wanted, const FoundTransports& found) {
  const std::string which = wanted.device.empty() ? "device" : "device " + wanted.device;
  const std::string rdma = found.rdma.empty() ? "" : Joined(found.rdma) + ", ";
  return "this machine has no RDMA " + which + ", UCX finds " + rdma + Joined(found.others) +
         " (sockets and shared memory do not count); `ucx_info -d` lists them";
}

LockLimit TestLimit(const std::optional<uint64_t>& lock_bytes) {
  return {lock_bytes.value_or(0), /*unlimited=*/!lock_bytes.has_value()};
}

}  // namespace

StatusOr<LaneChoice> ChooseRmaLane(const RmaWanted& wanted, const RmaFacts& facts) {
  if (wanted.device == kNoDevice) return LaneChoice{false, "rdma_device is none"};
  if (!wanted.shm_test && !Has(facts.transports.rdma, wanted.device)) {
    return Without(wanted, NoDevice(wanted, facts.transports));
  }
  // Who has a device and did not say that it is to be left alone wants it used: TCP in its place
  // would be noticed by its speed alone.
  if (const Status lockable = titan::transport::CheckLockable(
          wanted.lock_bytes, "slots up to memory_limit_bytes", facts.lockable);
      !lockable.ok()) {
    const char* const or_else =
        wanted.required ? "" : ", or set rdma_device to none: other machines then pull over TCP";
    return ResourceExhausted(MessageOf(lockable) + "; or lower memory_limit_bytes" + or_else);
  }
  return LaneChoice{true, wanted.shm_test ? "shared memory in place of an RDMA device"
                                          : Joined(facts.transports.rdma)};
}

StatusOr<OpenedLane> OpenRmaLane(const RmaWanted& wanted) {
  RmaFacts facts;
  std::string unseen;  // why it is not known what there is
  if (wanted.shm_test) {
    facts.lockable = TestLimit(wanted.shm_test_lock_bytes);
  } else if (wanted.device != kNoDevice) {
    auto found = titan::transport::FindTransports();
    if (found.ok()) facts.transports = *std::move(found);
    if (!found.ok()) unseen = MessageOf(found.status());
    facts.lockable = titan::transport::ReadLockLimit();
  }
  TITAN_ASSIGN_OR_RETURN(LaneChoice choice,
                         unseen.empty() ? ChooseRmaLane(wanted, facts) : Without(wanted, unseen));
  if (!choice.opens) return OpenedLane{nullptr, std::move(choice.found)};
  RmaOptions options;
  options.lane = wanted.shm_test ? titan::transport::RmaLane::kShmTest : options.lane;
  options.device = wanted.device;
  options.lockable = facts.lockable;
  options.registered = wanted.registered;
  auto domain = RmaDomain::Open(options);
  if (domain.ok()) return OpenedLane{*std::move(domain), std::move(choice.found)};
  TITAN_ASSIGN_OR_RETURN(choice, Without(wanted, MessageOf(domain.status())));
  return OpenedLane{nullptr, std::move(choice.found)};
}

Lane LaneOf(const RmaDomain& domain) {
  return domain.lane() == titan::transport::RmaLane::kRdma ? Lane::kRdma : Lane::kShmTest;
}

}  // namespace titan::weightstore::lanes
