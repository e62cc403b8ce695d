// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <utility>
#include <vector>

#include "core/runtime/address.h"
#include "services/rpc/peer.h"

namespace titan::rpc {
namespace {

// Failures that gRPC does not tell.
class Interceptor : public grpc::experimental::Interceptor {
 public:
  Interceptor(const std::string& address, const char* method)
      : address_(address), method_(method) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (!batch->QueryInterceptionHookPoint(Point::POST_RECV_STATUS)) return batch->Proceed();
    grpc::Status& status = *batch->GetRecvStatus();
    // gRPC's callback client reports a unary call as OK when its answer does not decode, with what
    // was decoded so far in the message. Only a unary call has both in one batch.
    if (status.ok() && batch->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE) &&
        batch->GetRecvMessage() == nullptr) {
      status =
          grpc::Status(grpc::StatusCode::INTERNAL,
                       std::string("the answer to ") + method_ +
                           " does not decode: it was cut, or the peer has other message types");
    }
    // Of a server that does not have the method; it gives no word to it.
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
      status = NotServed(address_, method_);
    }
    batch->Proceed();
  }

 private:
  const std::string& address_;
  const char* const method_;  // gRPC's, alive as long as the call
};

// Lives as long as the channel and its calls.
class Interceptors : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit Interceptors(std::string address) : address_(std::move(address)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo* info) override {
    return new Interceptor(address_, info->method());
  }

 private:
  const std::string address_;
};

}  // namespace

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
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<Interceptors>(address));
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, grpc::InsecureChannelCredentials(), arguments, std::move(interceptors));
}

}  // namespace titan::rpc
