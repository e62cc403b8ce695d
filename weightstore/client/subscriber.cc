// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/subscriber.h"

#include <memory>
#include <utility>

#include "weightstore/client/reason.h"

namespace titan::weightstore {

Subscriber::Subscriber(LeaderPort& leader, std::string socket_path, std::string holder)
    : leader_(leader),
      puller_(nullptr),
      socket_path_(std::move(socket_path)),
      holder_(std::move(holder)) {}

Subscriber::Subscriber(LeaderPort& leader, VersionPuller& puller, std::string holder)
    : leader_(leader), puller_(&puller), holder_(std::move(holder)) {}

StatusOr<HeldVersion> Subscriber::Acquire(const std::string& run_id, uint64_t version,
                                          bool evaluation) const {
  return puller_ == nullptr ? Map(run_id, version, evaluation) : Pull(run_id, version, evaluation);
}

StatusOr<HeldVersion> Subscriber::Map(const std::string& run_id, uint64_t version,
                                      bool evaluation) const {
  TITAN_ASSIGN_OR_RETURN(Lease lease, leader_.AcquireLease(holder_, run_id, version, evaluation));
  const uint64_t lease_id = lease.lease_id;
  StatusOr<HeldVersion> held = HeldVersion::Map(socket_path_, std::move(lease));
  if (!held.ok()) {
    (void)leader_.ReleaseLease(lease_id);  // else it ends by its ttl
    return Annotate(held.status(),
                    "mapping version " + std::to_string(version) + " of run " + run_id);
  }
  return held;
}

StatusOr<HeldVersion> Subscriber::Pull(const std::string& run_id, uint64_t version,
                                       bool evaluation) const {
  // Before the call: on the leader's clock the lease begins later, so it ends later, too.
  const SteadyTime asked = std::chrono::steady_clock::now();
  TITAN_ASSIGN_OR_RETURN(
      RemoteLease lease,
      leader_.AcquireRemoteLease(holder_, run_id, version, evaluation, puller_->lanes()));
  const auto memory = puller_->Pull(lease, asked + lease.ttl);
  (void)leader_.ReleaseLease(lease.lease.lease_id);  // else it ends by its ttl
  if (!memory.ok()) {
    return Annotate(memory.status(), "pulling version " + std::to_string(version) + " of run " +
                                         run_id + " over lane " + std::string(NameOf(lease.lane)) +
                                         " from " + lease.address);
  }
  return HeldVersion::OfPulled(std::move(lease.lease), *memory);
}

Status Subscriber::Renew(HeldVersion& version) const {
  const Lease held = version.lease();
  const std::string name =
      "version " + std::to_string(held.version) + " of run " + held.run_id + ", which is mapped";
  if (!version.HeaderUnchanged()) return Aborted(name + ", was taken from its readers");
  const auto acquire = [&] {
    return leader_.AcquireLease(holder_, held.run_id, held.version, /*evaluation=*/false);
  };
  StatusOr<Lease> lease = acquire();
  if (!lease.ok() && ReasonOf(lease.status()) == kVersionLost) {
    if (const Status adopted = version.Offer(socket_path_); !adopted.ok()) {
      return Annotate(adopted, name);
    }
    lease = acquire();
  }
  if (!lease.ok()) return Annotate(lease.status(), name);
  const Status tied = version.Tie(socket_path_, *lease);
  if (tied.ok()) return tied;
  (void)leader_.ReleaseLease(lease->lease_id);  // else it ends by its ttl
  // Of a lease that was good: another moment may do.
  return tied.code() == StatusCode::kDataLoss ? Annotate(tied, name)
                                              : Unavailable(name + ": " + MessageOf(tied));
}

bool Subscriber::MayRenewLater(const Status& status) {
  const StatusCode code = status.code();
  return code == StatusCode::kUnavailable || code == StatusCode::kResourceExhausted ||
         code == StatusCode::kDeadlineExceeded;
}

Status Subscriber::Release(HeldVersion version) const {
  const bool leased = version.mapped();
  const uint64_t lease_id = version.lease().lease_id;
  version.Drop();
  return leased ? leader_.ReleaseLease(lease_id) : OkStatus();
}

}  // namespace titan::weightstore
