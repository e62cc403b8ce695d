// SPDX-License-Identifier: Apache-2.0
//
// The lane of the same host: the slot's memory file, passed over the daemon's unix socket and
// mapped read-only (weightstore/client/held_version.h). Nothing travels; Read is for who wants a
// copy, in another layout say. The bytes were verified by the daemon for this sealed slot. Page
// tables are filled where bytes are looked at, so that a map takes as long for a large slot as for
// a small one.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_MAP_TRANSPORT_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_MAP_TRANSPORT_H_

#include <memory>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "weightstore/transport/byte_transport.h"

namespace titan::weightstore::lanes {

// A map is a lease without a ttl, so PullGrant::expires, epoch and token play no part here: the
// daemon looks at lease and grant number, and the header page tells when the slot was taken away.
class MapTransport final : public ByteTransport {
 public:
  // Of the host daemon. InvalidArgument: the path cannot be a socket's.
  static StatusOr<std::unique_ptr<MapTransport>> Create(std::string socket_path);

  Lane lane() const override { return Lane::kMap; }
  // The map is whole before the deadline is looked at.
  StatusOr<std::unique_ptr<RemoteSlot>> Open(const PullGrant& grant, SteadyTime deadline) override;

 private:
  explicit MapTransport(std::string socket_path) : socket_path_(std::move(socket_path)) {}

  const std::string socket_path_;
};

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_MAP_TRANSPORT_H_
