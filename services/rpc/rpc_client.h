// SPDX-License-Identifier: Apache-2.0
//
// The client half of the bridge between gRPC's callback API and the control strand.
//
//   control strand            gRPC threads
//   CallUnary ---------------> async()->Method ... reply
//      co_await <---- post to the strand --------------'
//
// gRPC runs completions on its own threads and shuts these down with the last channel, which must
// therefore not be freed on one of them. So what a call owns (its context, and through it the
// channel; whatever its callbacks hold) is handed to the control strand and freed there, or where
// the call was made when that thread still holds it.
//
// Coroutines return StatusOr and do not throw, save for asio's own cancellation (operation_aborted)
// when the coroutine that awaits was cancelled by its owner; the call is then cancelled at the peer
// as well. Every call has a deadline. At shutdown CancelAll() ends what is in flight, and later
// calls fail at once.
#ifndef TITAN_SERVICES_RPC_RPC_CLIENT_H_
#define TITAN_SERVICES_RPC_RPC_CLIENT_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/base/status.h"
#include "services/rpc/debug_delay.h"
#include "services/rpc/status_convert.h"

namespace titan::rpc {

namespace asio = boost::asio;
using Milliseconds = std::chrono::milliseconds;

// What the calls of a process share. Thread-safe. Must outlive its calls: see WaitIdle.
class RpcClient {
 public:
  // Completions run on `control`.
  explicit RpcClient(asio::any_io_executor control, DebugDelay delay = {});
  ~RpcClient();
  RpcClient(const RpcClient&) = delete;
  RpcClient& operator=(const RpcClient&) = delete;

  const asio::any_io_executor& control() const { return control_; }
  const DebugDelay& delay() const { return delay_; }

  // Cancels every call in flight and refuses new ones.
  void CancelAll();
  // Waits until no call is in flight; false after `patience`. Not on the control strand.
  bool WaitIdle(Milliseconds patience);

  // Of the calls themselves. A context with the deadline set; null after CancelAll.
  std::shared_ptr<grpc::ClientContext> Open(Milliseconds deadline);
  void Close(const std::shared_ptr<grpc::ClientContext>& context);

 private:
  const asio::any_io_executor control_;
  const DebugDelay delay_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::set<std::shared_ptr<grpc::ClientContext>> open_;
  bool closed_ = false;
};

namespace internal {

// A thing that every copy of a callback shares and the first call takes away whole. The callback's
// copies die on gRPC's threads; what was taken does not.
template <typename T>
class HandOver {
 public:
  explicit HandOver(std::shared_ptr<T> thing)
      : slot_(std::make_shared<std::shared_ptr<T>>(std::move(thing))) {}
  std::shared_ptr<T> Take() const { return std::exchange(*slot_, nullptr); }

 private:
  std::shared_ptr<std::shared_ptr<T>> slot_;
};

}  // namespace internal

// Method of a stub's async_interface, as in
// &WeightStoreService::StubInterface::async_interface::BeginVersion.
template <typename Async, typename Request, typename Response>
using UnaryMethod = void (Async::*)(grpc::ClientContext*, const Request*, Response*,
                                    std::function<void(grpc::Status)>);

// The plain form: done runs on the control strand, exactly once. `stub` must live until then. Any
// thread.
template <typename Stub, typename Async, typename Request, typename Response>
void CallUnaryThen(RpcClient& client, Stub& stub, UnaryMethod<Async, Request, Response> method,
                   std::type_identity_t<Request> request, Milliseconds deadline,
                   std::type_identity_t<std::function<void(StatusOr<Response>)>> done) {
  struct Call {
    Request request;
    Response response;
    std::function<void(StatusOr<Response>)> done;
    std::shared_ptr<grpc::ClientContext> context;
  };
  auto call =
      std::make_shared<Call>(Call{std::move(request), {}, std::move(done), client.Open(deadline)});
  auto control = asio::prefer(client.control(), asio::execution::outstanding_work.tracked);
  if (call->context == nullptr) {
    asio::post(control, [call] { call->done(Cancelled("shutting down")); });
    return;
  }
  auto start = [&client, &stub, method, call, control] {
    internal::HandOver<Call> kept(call);
    (stub.async()->*method)(call->context.get(), &call->request, &call->response,
                            [&client, kept, control](grpc::Status status) {
                              asio::post(control, [&client, call = kept.Take(), status] {
                                client.Close(call->context);
                                if (status.ok()) {
                                  call->done(std::move(call->response));
                                } else {
                                  call->done(FromGrpc(status));
                                }
                              });
                            });
  };
  const Milliseconds delay = client.delay().Next();
  if (delay.count() == 0) {
    start();
    return;
  }
  auto timer = std::make_shared<asio::steady_timer>(client.control(), delay);
  timer->async_wait([timer, start](boost::system::error_code) { start(); });
}

// The coroutine form. `client` and `stub` must live until it resumes.
template <typename Stub, typename Async, typename Request, typename Response>
asio::awaitable<StatusOr<Response>> CallUnary(RpcClient& client, Stub& stub,
                                              UnaryMethod<Async, Request, Response> method,
                                              std::type_identity_t<Request> request,
                                              Milliseconds deadline) {
  struct Call {
    Request request;
    Response response;
    std::shared_ptr<grpc::ClientContext> context;
  };
  const Milliseconds delay = client.delay().Next();
  if (delay.count() > 0) {
    asio::steady_timer timer(client.control(), delay);
    co_await timer.async_wait(asio::use_awaitable);
  }
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->context = client.Open(deadline);
  if (call->context == nullptr) co_return Cancelled("shutting down");
  auto start = [&client, &stub, method](auto handler, std::shared_ptr<Call> call) {
    auto slot = asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) {
      slot.assign([context = call->context](asio::cancellation_type) { context->TryCancel(); });
    }
    auto executor = asio::prefer(asio::get_associated_executor(handler, client.control()),
                                 asio::execution::outstanding_work.tracked);
    using Handler = decltype(handler);
    struct Waiting {
      Handler resume;
      std::shared_ptr<Call> call;
    };
    internal::HandOver<Waiting> kept(std::make_shared<Waiting>(Waiting{std::move(handler), call}));
    (stub.async()->*method)(
        call->context.get(), &call->request, &call->response,
        [&client, kept, executor, slot](grpc::Status status) {
          asio::post(executor, [&client, waiting = kept.Take(), slot, status]() mutable {
            if (slot.is_connected()) slot.clear();
            client.Close(waiting->call->context);
            waiting->resume(std::make_shared<grpc::Status>(std::move(status)));
          });
        });
  };
  const auto status = co_await asio::async_initiate<decltype(asio::use_awaitable),
                                                    void(std::shared_ptr<grpc::Status>)>(
      std::move(start), asio::use_awaitable, call);
  if (!status->ok()) co_return FromGrpc(*status);
  co_return std::move(call->response);
}

// Calls whose reply is a stream. on_message runs on the control strand for each message, one at a
// time, and the next is read when it has returned; then on_done, exactly once and last. The
// handle's Cancel may be called from any thread; dropping the handle does not end the stream.
class StreamHandle {
 public:
  StreamHandle() = default;
  explicit StreamHandle(std::shared_ptr<grpc::ClientContext> context)
      : context_(std::move(context)) {}
  // Whether there is a call: not after RpcClient::CancelAll.
  bool open() const { return context_ != nullptr; }
  void Cancel() {
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  std::shared_ptr<grpc::ClientContext> context_;
};

template <typename Async, typename Request, typename Response>
using ReadStreamMethod = void (Async::*)(grpc::ClientContext*, const Request*,
                                         grpc::ClientReadReactor<Response>*);

namespace internal {

// Owns itself from StartCall until the control strand has run on_done.
template <typename Request, typename Response>
class ReadReactor final : public grpc::ClientReadReactor<Response> {
 public:
  ReadReactor(RpcClient& client, std::shared_ptr<grpc::ClientContext> context, Request request,
              std::function<void(Response)> on_message, std::function<void(Status)> on_done)
      : client_(client),
        control_(asio::prefer(client.control(), asio::execution::outstanding_work.tracked)),
        context_(std::move(context)),
        request_(std::move(request)),
        on_message_(std::move(on_message)),
        on_done_(std::move(on_done)) {}

  template <typename Stub, typename Async>
  void Begin(Stub& stub, ReadStreamMethod<Async, Request, Response> method) {
    (stub.async()->*method)(context_.get(), &request_, this);
    this->AddHold();  // StartRead is called from the control strand
    this->StartRead(&message_);
    this->StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      // On the control strand: the StartRead that ended may not have returned there yet, and
      // without the hold OnDone would free the call under it.
      asio::post(control_, [this] { this->RemoveHold(); });
      return;
    }
    asio::post(control_, [this] {
      on_message_(std::move(message_));
      message_ = Response();
      this->StartRead(&message_);
    });
  }

  void OnDone(const grpc::Status& status) override {
    asio::post(control_, [this, status] {
      const std::unique_ptr<ReadReactor> self(this);
      client_.Close(context_);
      on_done_(FromGrpc(status));
    });
  }

 private:
  RpcClient& client_;
  asio::any_io_executor control_;
  std::shared_ptr<grpc::ClientContext> context_;
  Request request_;
  Response message_;
  std::function<void(Response)> on_message_;
  std::function<void(Status)> on_done_;
};

}  // namespace internal

template <typename Stub, typename Async, typename Request, typename Response>
StreamHandle CallServerStream(RpcClient& client, Stub& stub,
                              ReadStreamMethod<Async, Request, Response> method,
                              std::type_identity_t<Request> request, Milliseconds deadline,
                              std::type_identity_t<std::function<void(Response)>> on_message,
                              std::function<void(Status)> on_done) {
  auto context = client.Open(deadline);
  if (context == nullptr) {
    asio::post(client.control(), [done = std::move(on_done)] { done(Cancelled("shutting down")); });
    return StreamHandle();
  }
  auto* reactor = new internal::ReadReactor<Request, Response>(
      client, context, std::move(request), std::move(on_message), std::move(on_done));
  const Milliseconds delay = client.delay().Next();
  if (delay.count() == 0) {
    reactor->Begin(stub, method);
  } else {
    auto timer = std::make_shared<asio::steady_timer>(client.control(), delay);
    timer->async_wait([timer, reactor, &stub, method](boost::system::error_code) {
      reactor->Begin(stub, method);
    });
  }
  return StreamHandle(std::move(context));
}

template <typename Async, typename Request, typename Response>
using WriteStreamMethod = void (Async::*)(grpc::ClientContext*, Response*,
                                          grpc::ClientWriteReactor<Request>*);

namespace internal {

template <typename Request, typename Response>
class WriteReactor final : public grpc::ClientWriteReactor<Request> {
 public:
  WriteReactor(RpcClient& client, std::shared_ptr<grpc::ClientContext> context,
               std::function<std::optional<Request>()> next,
               std::function<void(StatusOr<Response>)> on_done)
      : client_(client),
        control_(asio::prefer(client.control(), asio::execution::outstanding_work.tracked)),
        context_(std::move(context)),
        next_(std::move(next)),
        on_done_(std::move(on_done)) {}

  template <typename Stub, typename Async>
  void Begin(Stub& stub, WriteStreamMethod<Async, Request, Response> method) {
    (stub.async()->*method)(context_.get(), &response_, this);
    this->AddHold();
    this->StartCall();
    asio::post(control_, [this] { WriteNext(); });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      asio::post(control_, [this] { this->RemoveHold(); });  // as in ReadReactor
      return;
    }
    asio::post(control_, [this] { WriteNext(); });
  }

  void OnDone(const grpc::Status& status) override {
    asio::post(control_, [this, status] {
      const std::unique_ptr<WriteReactor> self(this);
      client_.Close(context_);
      if (status.ok()) {
        on_done_(std::move(response_));
      } else {
        on_done_(FromGrpc(status));
      }
    });
  }

 private:
  void WriteNext() {
    message_ = next_();
    if (message_.has_value()) {
      this->StartWrite(&*message_);
    } else {
      this->StartWritesDone();
      this->RemoveHold();
    }
  }

  RpcClient& client_;
  asio::any_io_executor control_;
  std::shared_ptr<grpc::ClientContext> context_;
  std::function<std::optional<Request>()> next_;
  std::optional<Request> message_;
  Response response_;
  std::function<void(StatusOr<Response>)> on_done_;
};

}  // namespace internal

// Calls whose request is a stream. `next` runs on the control strand each time the previous message
// is written, and ends the stream with nothing; then on_done with the response, exactly once and
// last.
template <typename Stub, typename Async, typename Request, typename Response>
StreamHandle CallClientStream(
    RpcClient& client, Stub& stub, WriteStreamMethod<Async, Request, Response> method,
    std::type_identity_t<std::function<std::optional<Request>()>> next, Milliseconds deadline,
    std::type_identity_t<std::function<void(StatusOr<Response>)>> on_done) {
  auto context = client.Open(deadline);
  if (context == nullptr) {
    asio::post(client.control(), [done = std::move(on_done)] { done(Cancelled("shutting down")); });
    return StreamHandle();
  }
  auto* reactor = new internal::WriteReactor<Request, Response>(client, context, std::move(next),
                                                                std::move(on_done));
  const Milliseconds delay = client.delay().Next();
  if (delay.count() == 0) {
    reactor->Begin(stub, method);
  } else {
    auto timer = std::make_shared<asio::steady_timer>(client.control(), delay);
    timer->async_wait([timer, reactor, &stub, method](boost::system::error_code) {
      reactor->Begin(stub, method);
    });
  }
  return StreamHandle(std::move(context));
}

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_RPC_CLIENT_H_
