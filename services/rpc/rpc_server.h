// SPDX-License-Identifier: Apache-2.0
//
// The server half of the bridge: gRPC's callback threads hand each call to the control strand,
// where the handler runs as a coroutine or a plain function; replies go back from any thread.
//
//   gRPC thread: Method(context, request, response) { return ServeUnary(...); }
//        '--post--> control strand: handler(request) ... co_return StatusOr<Response> --Finish-->
//        gRPC
//
// Handlers are not cut off when the peer cancels: what they changed stays whole. Streams tell it
// (cancelled()). An exception that leaves a handler becomes INTERNAL, asio's operation_aborted
// CANCELLED.
#ifndef TITAN_SERVICES_RPC_RPC_SERVER_H_
#define TITAN_SERVICES_RPC_RPC_SERVER_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/base/status.h"
#include "services/rpc/debug_delay.h"
#include "services/rpc/status_convert.h"

namespace titan::rpc {

namespace asio = boost::asio;

// What the handlers of a process share. Thread-safe; must outlive the gRPC server.
class RpcServer {
 public:
  explicit RpcServer(asio::any_io_executor control, DebugDelay delay = {});
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  const asio::any_io_executor& control() const { return control_; }

  // Cancels every handler coroutine (they see operation_aborted at their next co_await): the last
  // step of a shutdown. Any thread.
  void CancelAll();

  // Runs a coroutine on the control strand after the debug delay; `finish` gets its failure as a
  // Status when it leaves by an exception, else OK.
  void Spawn(std::function<asio::awaitable<void>()> body, std::function<void(Status)> finish);

 private:
  asio::awaitable<void> Delayed(std::function<asio::awaitable<void>()> body);

  const asio::any_io_executor control_;
  const DebugDelay delay_;
  std::set<std::shared_ptr<asio::cancellation_signal>> running_;  // control strand only
};

// ---- unary ----

// handler: (Request) -> asio::awaitable<StatusOr<Response>>. It is kept until it has finished.
template <typename Request, typename Response, typename Handler>
grpc::ServerUnaryReactor* ServeUnary(RpcServer& server, grpc::CallbackServerContext* context,
                                     const Request* request, Response* response, Handler handler) {
  class Reactor final : public grpc::ServerUnaryReactor {
   public:
    void OnDone() override { delete this; }
  };
  auto* reactor = new Reactor;
  auto kept = std::make_shared<Handler>(std::move(handler));
  auto result = std::make_shared<StatusOr<Response>>(Internal("the handler left no result"));
  server.Spawn(
      [kept, request, result]() -> asio::awaitable<void> { *result = co_await (*kept)(*request); },
      [reactor, response, result, kept](const Status& failure) {
        if (!failure.ok()) *result = failure;
        if (result->ok()) *response = std::move(**result);
        reactor->Finish(ToGrpc(result->status()));
      });
  return reactor;
}

// handler: (Request, reply) with reply: void(StatusOr<Response>), called once, from any thread.
template <typename Request, typename Response, typename Handler>
grpc::ServerUnaryReactor* ServeUnaryThen(RpcServer& server, grpc::CallbackServerContext* context,
                                         const Request* request, Response* response,
                                         Handler handler) {
  class Reactor final : public grpc::ServerUnaryReactor {
   public:
    void OnDone() override { delete this; }
  };
  auto* reactor = new Reactor;
  std::function<void(StatusOr<Response>)> reply = [reactor, response](StatusOr<Response> result) {
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(ToGrpc(result.status()));
  };
  auto kept = std::make_shared<Handler>(std::move(handler));
  server.Spawn(
      [kept, request, reply]() -> asio::awaitable<void> {
        (*kept)(Request(*request), reply);
        co_return;
      },
      [kept, reply](const Status& failure) {
        if (!failure.ok()) reply(failure);
      });
  return reactor;
}

// ---- server streaming ----

// The reply stream of one call. Thread-safe. Must be finished exactly once, also after cancelled().
template <typename Response>
class ResponseStream : public std::enable_shared_from_this<ResponseStream<Response>> {
 public:
  // Queues a message, never waits. ResourceExhausted: `max_queued` wait already; Cancelled: the
  // peer has gone or the stream is finished.
  Status Push(Response message);
  // Control strand: waits for a place instead of failing.
  asio::awaitable<Status> Write(Response message);
  // Ends the stream after what is queued. Only the first call counts.
  void Finish(const Status& status);
  bool cancelled() const {
    std::lock_guard lock(mutex_);
    return broken_;
  }
  // Runs on the control strand once the peer has gone (at once if it has); replaces an earlier one.
  void OnCancel(std::function<void()> callback);
  size_t queued() const {
    std::lock_guard lock(mutex_);
    return queue_.size();
  }

 private:
  template <typename Request, typename R, typename Handler>
  friend grpc::ServerWriteReactor<R>* ServeStreamThen(RpcServer&, grpc::CallbackServerContext*,
                                                      const Request*, size_t, Handler);

  // Lives until OnDone; keeps the stream alive as well.
  class Reactor final : public grpc::ServerWriteReactor<Response> {
   public:
    explicit Reactor(std::shared_ptr<ResponseStream> stream) : stream_(std::move(stream)) {}
    void OnWriteDone(bool ok) override { stream_->Written(ok); }
    void OnCancel() override { stream_->Break(); }
    void OnDone() override { delete this; }

   private:
    std::shared_ptr<ResponseStream> stream_;
  };

  ResponseStream(asio::any_io_executor control, size_t max_queued)
      : control_(control), max_queued_(max_queued), place_(control) {}

  void Written(bool ok);
  void Break();
  // REQUIRES: mutex_. Whoever is told that the stream is broken may finish it, which ends
  // on_cancel_.
  void SetBroken();
  void WakeWriter();

  const asio::any_io_executor control_;
  const size_t max_queued_;
  mutable std::mutex mutex_;
  Reactor* reactor_ = nullptr;  // valid until Finish reached it
  std::deque<Response> queue_;  // the front is being written while writing_
  bool writing_ = false;
  bool broken_ = false;
  bool finishing_ = false;
  // A write may end before the StartWrite in Push has returned; the call must outlive that, so then
  // it is Push that finishes.
  bool starting_ = false;
  bool finish_due_ = false;
  Status final_status_;
  std::function<void()> on_cancel_;
  asio::steady_timer place_;  // control strand only: wakes Write
};

template <typename Response>
Status ResponseStream<Response>::Push(Response message) {
  Response* first = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (broken_ || finishing_) return Cancelled("the stream has ended");
    if (queue_.size() >= max_queued_) {
      return ResourceExhausted("the stream has " + std::to_string(max_queued_) +
                               " messages queued");
    }
    queue_.push_back(std::move(message));
    if (!writing_) {
      writing_ = true;
      starting_ = true;
      first = &queue_.front();
    }
  }
  if (first == nullptr) return OkStatus();
  reactor_->StartWrite(first);  // writing_ keeps everyone else away
  bool finish = false;
  {
    std::lock_guard lock(mutex_);
    starting_ = false;
    finish = finish_due_;
  }
  if (finish) reactor_->Finish(ToGrpc(final_status_));
  return OkStatus();
}

template <typename Response>
asio::awaitable<Status> ResponseStream<Response>::Write(Response message) {
  auto self = this->shared_from_this();
  for (;;) {
    place_.expires_at(asio::steady_timer::time_point::max());
    bool full = false;
    {
      std::lock_guard lock(mutex_);
      full = !broken_ && !finishing_ && queue_.size() >= max_queued_;
    }
    if (!full) co_return Push(std::move(message));
    boost::system::error_code woken;
    co_await place_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
}

template <typename Response>
void ResponseStream<Response>::Finish(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (finishing_) return;
    finishing_ = true;
    final_status_ = status;
    on_cancel_ = nullptr;
    if (writing_) return;  // Written() ends it
    if (starting_) {
      finish_due_ = true;  // Push() ends it
      return;
    }
  }
  reactor_->Finish(ToGrpc(status));
}

template <typename Response>
void ResponseStream<Response>::OnCancel(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  if (broken_) {
    asio::post(control_, std::move(callback));
  } else if (!finishing_) {
    on_cancel_ = std::move(callback);
  }
}

template <typename Response>
void ResponseStream<Response>::Written(bool ok) {
  Response* next = nullptr;
  bool finish = false;
  {
    std::lock_guard lock(mutex_);
    queue_.pop_front();
    if (!ok) {
      SetBroken();
      queue_.clear();
    }
    if (!queue_.empty()) {
      next = &queue_.front();
    } else {
      writing_ = false;
      finish_due_ = finishing_ && starting_;
      finish = finishing_ && !starting_;
    }
  }
  if (next != nullptr) {
    reactor_->StartWrite(next);
  } else if (finish) {
    reactor_->Finish(ToGrpc(final_status_));
    return;
  }
  WakeWriter();
}

template <typename Response>
void ResponseStream<Response>::Break() {
  {
    std::lock_guard lock(mutex_);
    SetBroken();
  }
  WakeWriter();
}

template <typename Response>
void ResponseStream<Response>::SetBroken() {
  broken_ = true;
  if (on_cancel_) asio::post(control_, std::exchange(on_cancel_, nullptr));
}

template <typename Response>
void ResponseStream<Response>::WakeWriter() {
  asio::post(control_, [self = this->shared_from_this()] { self->place_.cancel(); });
}

// handler: (Request, std::shared_ptr<ResponseStream<Response>>), a plain function on the control
// strand; the stream lives on with whoever keeps it and must be finished. Response is named by the
// caller.
template <typename Request, typename Response, typename Handler>
grpc::ServerWriteReactor<Response>* ServeStreamThen(RpcServer& server,
                                                    grpc::CallbackServerContext* context,
                                                    const Request* request, size_t max_queued,
                                                    Handler handler) {
  using Stream = ResponseStream<Response>;
  std::shared_ptr<Stream> stream(new Stream(server.control(), max_queued));
  auto* reactor = new typename Stream::Reactor(stream);
  stream->reactor_ = reactor;
  auto kept = std::make_shared<Handler>(std::move(handler));
  server.Spawn(
      [kept, stream, request = Request(*request)]() -> asio::awaitable<void> {
        (*kept)(request, stream);
        co_return;
      },
      [stream](const Status& failure) {
        if (!failure.ok()) stream->Finish(failure);
      });
  return reactor;
}

// handler: (Request, std::shared_ptr<ResponseStream<Response>>) -> asio::awaitable<Status>, which
// ends the stream.
template <typename Response, typename Request, typename Handler>
grpc::ServerWriteReactor<Response>* ServeStream(RpcServer& server,
                                                grpc::CallbackServerContext* context,
                                                const Request* request, size_t max_queued,
                                                Handler handler) {
  auto kept = std::make_shared<Handler>(std::move(handler));
  return ServeStreamThen<Request, Response>(
      server, context, request, max_queued,
      [&server, kept](const Request& message, std::shared_ptr<ResponseStream<Response>> stream) {
        auto status = std::make_shared<Status>();
        server.Spawn(
            [kept, message, stream, status]() -> asio::awaitable<void> {
              *status = co_await (*kept)(message, stream);
            },
            [stream, status, kept](const Status& failure) {
              stream->Finish(failure.ok() ? *status : failure);
            });
      });
}

// ---- client streaming ----

// The request stream of one call; control strand only.
template <typename Request>
class RequestStream : public std::enable_shared_from_this<RequestStream<Request>> {
 public:
  // The next message, or nothing after the peer's half-close. Cancelled: the peer has gone.
  // REQUIRES: the previous Next has returned.
  asio::awaitable<StatusOr<std::optional<Request>>> Next() {
    auto self = this->shared_from_this();
    message_.Clear();
    arrived_ = false;
    wake_.expires_at(asio::steady_timer::time_point::max());
    start_read_(&message_);
    boost::system::error_code woken;
    while (!arrived_) co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    if (ok_) co_return std::optional<Request>(std::move(message_));
    if (cancelled_) co_return Cancelled("the caller has gone");
    co_return std::optional<Request>();
  }

  // Used by ServeClientStream.
  RequestStream(asio::any_io_executor control, std::function<void(Request*)> start_read)
      : start_read_(std::move(start_read)), wake_(control) {}
  void Arrive(bool ok, bool cancelled) {
    arrived_ = true;
    ok_ = ok;
    cancelled_ = cancelled;
    wake_.cancel();
  }

 private:
  std::function<void(Request*)> start_read_;
  Request message_;
  bool arrived_ = false;
  bool ok_ = false;
  bool cancelled_ = false;
  asio::steady_timer wake_;
};

// handler: (std::shared_ptr<RequestStream<Request>>) -> asio::awaitable<StatusOr<Response>>.
// Request is named by the caller. The stream must not be used after the handler has returned.
template <typename Request, typename Response, typename Handler>
grpc::ServerReadReactor<Request>* ServeClientStream(RpcServer& server,
                                                    grpc::CallbackServerContext* context,
                                                    Response* response, Handler handler) {
  struct Reactor final : public grpc::ServerReadReactor<Request> {
    asio::any_io_executor control;
    grpc::CallbackServerContext* context = nullptr;
    std::shared_ptr<RequestStream<Request>> stream;
    void OnReadDone(bool ok) override {
      // Before Finish, so the context is still there; the stream is kept by the posted call.
      asio::post(control, [stream = stream, ok, cancelled = !ok && context->IsCancelled()] {
        stream->Arrive(ok, cancelled);
      });
    }
    void OnDone() override { delete this; }
  };
  auto* reactor = new Reactor;
  reactor->control = server.control();
  reactor->context = context;
  reactor->stream = std::make_shared<RequestStream<Request>>(
      server.control(), [reactor](Request* into) { reactor->StartRead(into); });
  auto kept = std::make_shared<Handler>(std::move(handler));
  auto result = std::make_shared<StatusOr<Response>>(Internal("the handler left no result"));
  auto stream = reactor->stream;
  server.Spawn(
      [kept, stream, result]() -> asio::awaitable<void> { *result = co_await (*kept)(stream); },
      [reactor, response, result, kept](const Status& failure) {
        if (!failure.ok()) *result = failure;
        if (result->ok()) *response = std::move(**result);
        reactor->Finish(ToGrpc(result->status()));
      });
  return reactor;
}

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_RPC_SERVER_H_
