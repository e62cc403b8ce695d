// SPDX-License-Identifier: Apache-2.0
//
// The reader's side: a lease from the leader, then a read-only map from the daemon of this host, or
// a pull from the one that has the version.
//
//   auto held = subscriber.Acquire(run, version, /*evaluation=*/false);
//   loop: run a step on held->bytes(); if (!held->HeaderUnchanged()) discard the step, become stale
//   now and then: if (held->orphaned()) subscriber.Renew(*held), unless another host has it
//   subscriber.Release(std::move(*held));
#ifndef TITAN_WEIGHTSTORE_CLIENT_SUBSCRIBER_H_
#define TITAN_WEIGHTSTORE_CLIENT_SUBSCRIBER_H_

#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string>

#include "core/base/status.h"
#include "weightstore/client/held_version.h"
#include "weightstore/client/leader_port.h"
#include "weightstore/client/remote_lease.h"

namespace titan::weightstore {

// Thread-safe.
class Subscriber {
 public:
  // Maps. leader must outlive the subscriber. holder: the worker id that operators see.
  Subscriber(LeaderPort& leader, std::string socket_path, std::string holder);
  // Maps what the daemon at socket_path has and pulls the rest; an empty path, or one where nobody
  // has answered yet: pulls everything. puller must outlive the subscriber, too.
  Subscriber(LeaderPort& leader, std::string socket_path, VersionPuller& puller,
             std::string holder);

  // Mapped bytes are verified by the host daemon for this sealed slot in this incarnation, and the
  // header's digest equals the lease's; pulled ones are verified by this process. Codes of
  // AcquireLease and HeldVersion::Map, or of AcquireRemoteLease and VersionPuller::Pull; but
  // Unavailable instead of kNoRemoteLane while it is not known whether the version is on this host.
  // A lease whose version was pulled, or could not be had, is given back.
  StatusOr<HeldVersion> Acquire(const std::string& run_id, uint64_t version, bool evaluation) const;

  // For a mapped version whose daemon is gone (HeldVersion::orphaned): ties it to the daemon that
  // is there now, which adopts the memory if no other holds the version. It is used on meanwhile.
  // False of MayRenewLater: nobody wants it any more, or it was taken back before: Release it. But
  // with kServedElsewhere another host has made it again: it may be used on, and there is nothing
  // to ask for until that loses it, too. Cancelled: after Cancel.
  Status Renew(HeldVersion& version) const;
  static bool MayRenewLater(const Status& status);

  // Ends a Renew that waits for its daemon, and those that come: this process is shutting down.
  void Cancel() { stop_.request_stop(); }

  // Drops it and tells the leader if that holds a lease for it. An error means only that the leader
  // did not hear it: the lease ends by the closed connection all the same.
  Status Release(HeldVersion version) const;

 private:
  // What the daemon at socket_path_ is called. Codes of a socket's operations.
  StatusOr<std::string> NameOfHost() const;
  StatusOr<HeldVersion> Map(Lease lease) const;
  // Of a version of this host. kServedElsewhere: it is another's. Unavailable: nobody, or who is no
  // weight store, is at socket_path_.
  StatusOr<Lease> AcquireHere(const Lease& held) const;
  StatusOr<HeldVersion> Pull(RemoteLease lease, SteadyTime expires) const;

  LeaderPort& leader_;
  VersionPuller* const puller_;  // null: maps alone
  const std::string socket_path_;
  const std::string holder_;
  std::stop_source stop_;
  mutable std::mutex mutex_;
  mutable std::string host_;  // guarded; what the daemon at socket_path_ is called, once heard
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_SUBSCRIBER_H_
