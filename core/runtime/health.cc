// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/health.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "core/runtime/address.h"
#include "core/runtime/listen.h"

namespace titan::runtime {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

namespace {

constexpr uint32_t kMaxHeaderBytes = 8192;
constexpr std::chrono::seconds kRequestTimeout{5};
constexpr int kMaxConnections = 32;

}  // namespace

struct HealthListener::Impl {
  explicit Impl(const Metrics& m) : metrics(m) {}

  const Metrics& metrics;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  std::string address;
  std::mutex mutex;  // of ready and reason
  bool ready = false;
  std::string reason = "starting";
  int connections = 0;  // only the listener's thread
  std::jthread thread;

  http::response<http::string_body> Answer(const http::request<http::empty_body>& request) {
    http::response<http::string_body> response{http::status::ok, request.version()};
    response.set(http::field::content_type, "text/plain; charset=utf-8");
    if (request.method() != http::verb::get) {
      response.result(http::status::method_not_allowed);
      response.set(http::field::allow, "GET");
      response.body() = "only GET\n";
    } else if (request.target() == "/metrics") {
      response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      response.body() = metrics.Text();
    } else if (request.target() == "/healthz") {
      response.body() = "alive\n";
    } else if (request.target() == "/readyz") {
      std::lock_guard lock(mutex);
      if (!ready) response.result(http::status::service_unavailable);
      response.body() = ready ? "ready\n" : "not ready: " + reason + "\n";
    } else {
      response.result(http::status::not_found);
      response.body() = "only /metrics, /healthz and /readyz\n";
    }
    response.keep_alive(request.keep_alive());
    response.prepare_payload();
    return response;
  }

  asio::awaitable<void> Serve(tcp::socket socket) {
    ++connections;
    beast::tcp_stream stream(std::move(socket));
    beast::flat_buffer buffer(kMaxHeaderBytes);
    boost::system::error_code error;
    for (;;) {
      http::request_parser<http::empty_body> parser;
      parser.header_limit(kMaxHeaderBytes);
      parser.body_limit(0);
      stream.expires_after(kRequestTimeout);
      co_await http::async_read(stream, buffer, parser,
                                asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
      const auto response = Answer(parser.get());
      stream.expires_after(kRequestTimeout);
      co_await http::async_write(stream, response,
                                 asio::redirect_error(asio::use_awaitable, error));
      if (error || !response.keep_alive()) break;
    }
    stream.socket().shutdown(tcp::socket::shutdown_send, error);
    --connections;
  }

  asio::awaitable<void> Accept() {
    for (;;) {
      boost::system::error_code error;
      tcp::socket socket =
          co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) co_return;
      if (error) {  // out of descriptors, say: wait instead of spinning
        asio::steady_timer pause(io, std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      if (connections >= kMaxConnections) continue;  // closes the socket
      asio::co_spawn(io, Serve(std::move(socket)), asio::detached);
    }
  }
};

StatusOr<std::unique_ptr<HealthListener>> HealthListener::Create(const std::string& listen,
                                                                 const Metrics& metrics) {
  TITAN_ASSIGN_OR_RETURN(const HostPort wanted, ParseHostPort(listen));
  auto impl = std::make_unique<Impl>(metrics);
  boost::system::error_code error;
  const auto ip = asio::ip::make_address(NumericHost(wanted), error);
  if (error) return InvalidArgument("'" + wanted.host + "' is not an IP address");
  const tcp::endpoint endpoint(ip, wanted.port);
  impl->acceptor.open(endpoint.protocol(), error);
  if (!error) impl->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl->acceptor.bind(endpoint, error);
  if (!error) impl->acceptor.listen(kMaxConnections, error);
  if (error) return CannotListen(wanted, error.value());
  const auto bound = impl->acceptor.local_endpoint(error);
  if (error) return Unavailable("health listener: " + error.message());
  impl->address = ToText({bound.address().to_string(), bound.port()});
  asio::co_spawn(impl->io, impl->Accept(), asio::detached);
  impl->thread = std::jthread([raw = impl.get()] { raw->io.run(); });
  return std::unique_ptr<HealthListener>(new HealthListener(std::move(impl)));
}

HealthListener::HealthListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HealthListener::~HealthListener() {
  impl_->io.stop();
  impl_->thread.join();
}

void HealthListener::SetReady(bool ready, const std::string& reason) {
  std::lock_guard lock(impl_->mutex);
  impl_->ready = ready;
  impl_->reason = reason;
}

const std::string& HealthListener::address() const { return impl_->address; }

namespace {

asio::awaitable<void> Fetch(std::string address, std::string path,
                            std::chrono::milliseconds deadline, StatusOr<HealthAnswer>* answer) {
  const auto peer = ParseHostPort(address);
  if (!peer.ok()) {
    *answer = peer.status();
    co_return;
  }
  boost::system::error_code error;
  const auto ip = asio::ip::make_address(peer->host, error);
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  stream.expires_after(deadline);
  if (!error) {
    co_await stream.async_connect(tcp::endpoint(ip, peer->port),
                                  asio::redirect_error(asio::use_awaitable, error));
  }
  http::request<http::empty_body> request{http::verb::get, path, 11};
  request.set(http::field::host, address);
  request.keep_alive(false);
  if (!error) {
    co_await http::async_write(stream, request, asio::redirect_error(asio::use_awaitable, error));
  }
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(16u << 20);
  if (!error) {
    co_await http::async_read(stream, buffer, parser,
                              asio::redirect_error(asio::use_awaitable, error));
  }
  if (error == beast::error::timeout) {
    *answer = DeadlineExceeded("no answer from " + address + path);
  } else if (error) {
    *answer = Unavailable("no answer from " + address + path + ": " + error.message());
  } else {
    *answer = HealthAnswer{static_cast<int>(parser.get().result_int()), parser.get().body()};
  }
}

}  // namespace

StatusOr<HealthAnswer> GetHealth(const std::string& address, const std::string& path,
                                 std::chrono::milliseconds deadline) {
  asio::io_context io{1};
  StatusOr<HealthAnswer> answer = Internal("not asked");
  asio::co_spawn(io, Fetch(address, path, deadline, &answer), asio::detached);
  io.run();
  return answer;
}

}  // namespace titan::runtime
