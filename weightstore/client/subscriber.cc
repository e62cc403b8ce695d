// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/subscriber.h"

#include <chrono>
#include <utility>

#include "weightstore/client/reason.h"
#include "weightstore/client/unix_socket.h"

namespace titan::weightstore {
namespace {

// The answer of who has only to look up its own name; a daemon that stands still is waited for only
// where it has the version.
constexpr std::chrono::milliseconds kNamePatience{300};

std::string Named(const Lease& lease) {
  return "version " + std::to_string(lease.version) + " of run " + lease.run_id;
}

}  // namespace

Subscriber::Subscriber(LeaderPort& leader, std::string socket_path, std::string holder)
    : leader_(leader),
      puller_(nullptr),
      socket_path_(std::move(socket_path)),
      holder_(std::move(holder)) {}

Subscriber::Subscriber(LeaderPort& leader, std::string socket_path, VersionPuller& puller,
                       std::string holder)
    : leader_(leader),
      puller_(&puller),
      socket_path_(std::move(socket_path)),
      holder_(std::move(holder)) {}

StatusOr<std::string> Subscriber::NameOfHost() const {
  TITAN_ASSIGN_OR_RETURN(const UniqueFd connection, ConnectUnix(socket_path_, kNamePatience));
  TITAN_ASSIGN_OR_RETURN(SocketAnswer host,
                         Call(connection.get(), {.kind = SocketRequestKind::kWhoIsThere}));
  return std::move(host.text);
}

StatusOr<HeldVersion> Subscriber::Acquire(const std::string& run_id, uint64_t version,
                                          bool evaluation) const {
  if (puller_ == nullptr) {
    TITAN_ASSIGN_OR_RETURN(Lease lease, leader_.AcquireLease(holder_, run_id, version, evaluation));
    return Map(std::move(lease));
  }
  Reach reach{puller_->lanes(), ""};
  Status unheard = OkStatus();  // why the daemon of this host does not answer
  if (!socket_path_.empty()) {
    StatusOr<std::string> host = NameOfHost();
    unheard = host.status();
    std::lock_guard lock(mutex_);
    if (host.ok()) host_ = *std::move(host);
    reach.host = host_;
  }
  // Before the call: on the leader's clock the lease begins later, so it ends later, too.
  const SteadyTime asked = std::chrono::steady_clock::now();
  StatusOr<RemoteLease> lease =
      leader_.AcquireRemoteLease(holder_, run_id, version, evaluation, reach);
  if (!lease.ok()) {
    if (unheard.ok()) return lease.status();
    const std::string why = "weightstore_socket: " + MessageOf(unheard);
    const bool may_be_here = reach.host.empty() && ReasonOf(lease.status()) == kNoRemoteLane;
    return may_be_here ? Unavailable(why) : Annotate(lease.status(), why);
  }
  if (lease->lane == Lane::kMap && !reach.host.empty()) return Map(std::move(lease->lease));
  const SteadyTime expires = asked + lease->ttl;
  return Pull(*std::move(lease), expires);
}

StatusOr<HeldVersion> Subscriber::Map(Lease lease) const {
  const uint64_t lease_id = lease.lease_id;
  const std::string name = Named(lease);
  StatusOr<HeldVersion> held = HeldVersion::Map(socket_path_, std::move(lease));
  if (!held.ok()) {
    (void)leader_.ReleaseLease(lease_id);  // else it ends by its ttl
    return Annotate(held.status(), "mapping " + name);
  }
  return held;
}

StatusOr<HeldVersion> Subscriber::Pull(RemoteLease lease, SteadyTime expires) const {
  const auto memory = puller_->Pull(lease, expires);
  (void)leader_.ReleaseLease(lease.lease.lease_id);  // else it ends by its ttl
  if (!memory.ok()) {
    return Annotate(memory.status(), "pulling " + Named(lease.lease) + " over lane " +
                                         std::string(NameOf(lease.lane)) + " from " +
                                         lease.address);
  }
  return HeldVersion::OfPulled(std::move(lease.lease), *memory);
}

StatusOr<Lease> Subscriber::AcquireHere(const Lease& held) const {
  const StatusOr<std::string> name = NameOfHost();
  // Whatever answered there instead, it says nothing of the version.
  if (!name.ok()) return Unavailable("weightstore_socket: " + MessageOf(name.status()));
  const std::string& host = *name;
  // Who can pull by no lane gets a lease of its own host or none.
  StatusOr<RemoteLease> lease = leader_.AcquireRemoteLease(holder_, held.run_id, held.version,
                                                           /*evaluation=*/false, Reach{{}, host});
  if (lease.ok()) return std::move(lease->lease);
  if (ReasonOf(lease.status()) != kNoRemoteLane) return lease.status();
  return WithReason(FailedPrecondition("another host than " + host + " has made it again"),
                    kServedElsewhere);
}

Status Subscriber::Renew(HeldVersion& version) const {
  const Lease held = version.lease();
  const std::string name = Named(held) + ", which is mapped";
  if (stop_.stop_requested()) return Cancelled("this process is shutting down");
  if (!version.HeaderUnchanged()) return Aborted(name + ", was taken from its readers");
  StatusOr<Lease> lease = AcquireHere(held);
  if (!lease.ok() && ReasonOf(lease.status()) == kVersionLost) {
    if (const Status adopted = version.Offer(socket_path_, stop_.get_token()); !adopted.ok()) {
      return Annotate(adopted, name);
    }
    lease = AcquireHere(held);
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
