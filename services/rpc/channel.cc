// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "core/runtime/address.h"

namespace titan::rpc {

StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address) {
  TITAN_ASSIGN_OR_RETURN(const runtime::HostPort peer, runtime::ParseHostPort(address));
  if (!runtime::IsLoopback(peer)) {
    return InvalidArgument("address '" + address +
                           "' is not on loopback; connections without TLS stay on loopback");
  }
  if (peer.port == 0) return InvalidArgument("address '" + address + "' has port 0");
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // What one attempt may take, from connect to the peer's settings. A refused one ends at once; a
  // busy machine needs more than the backoff.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
                   0);  // proxies of the environment are not for loopback
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace titan::rpc
