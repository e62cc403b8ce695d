// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/rpc_server.h"

#include <exception>

namespace titan::rpc {

RpcServer::RpcServer(asio::any_io_executor control, DebugDelay delay)
    : control_(std::move(control)), delay_(std::move(delay)) {}

void RpcServer::CancelAll() {
  asio::post(control_, [this] {
    // A handler that ends removes itself from running_, so walk a copy.
    const auto running = running_;
    for (const auto& signal : running) signal->emit(asio::cancellation_type::terminal);
  });
}

asio::awaitable<void> RpcServer::Delayed(std::function<asio::awaitable<void>()> body) {
  const auto delay = delay_.Next();
  if (delay.count() > 0) {
    asio::steady_timer timer(control_, delay);
    co_await timer.async_wait(asio::use_awaitable);
  }
  co_await body();
}

void RpcServer::Spawn(std::function<asio::awaitable<void>()> body,
                      std::function<void(Status)> finish) {
  asio::post(control_, [this, body = std::move(body), finish = std::move(finish)]() mutable {
    auto signal = std::make_shared<asio::cancellation_signal>();
    running_.insert(signal);
    auto kept = std::make_shared<std::function<asio::awaitable<void>()>>(std::move(body));
    asio::co_spawn(control_, Delayed([kept] { return (*kept)(); }),
                   asio::bind_cancellation_slot(
                       signal->slot(), [this, signal, kept, finish](std::exception_ptr failure) {
                         running_.erase(signal);
                         Status status;
                         try {
                           if (failure) std::rethrow_exception(failure);
                         } catch (const boost::system::system_error& e) {
                           status = e.code() == asio::error::operation_aborted
                                        ? Cancelled("shutting down")
                                        : Internal(e.what());
                         } catch (const std::exception& e) {
                           status = Internal(e.what());
                         } catch (...) {
                           status = Internal("the handler threw something that is no exception");
                         }
                         finish(status);
                       }));
  });
}

}  // namespace titan::rpc
