// SPDX-License-Identifier: Apache-2.0
//
// Channels to other daemons, with the limits that all of them share.
#ifndef TITAN_SERVICES_RPC_CHANNEL_H_
#define TITAN_SERVICES_RPC_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "core/base/status.h"

namespace titan::rpc {

// No message carries more than 1 MiB of payload; this leaves room for the fields around it.
inline constexpr int kMaxMessageBytes = 4 << 20;

// Loopback addresses only, for now: InvalidArgument otherwise (TLS is what would make others
// acceptable). A call that the peer does not know fails with Unimplemented, which says what was
// expected at which address.
StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address);

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_CHANNEL_H_
