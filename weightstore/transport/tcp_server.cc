// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/tcp_server.h"

#include <signal.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "core/runtime/address.h"
#include "core/runtime/listen.h"
#include "weightstore/transport/pack.h"

namespace titan::weightstore::lanes {
namespace asio = boost::asio;
using tcp = asio::ip::tcp;

namespace {

struct Counters {
  std::atomic<uint64_t> connections{0}, refused_connections{0}, answers{0}, sent_bytes{0},
      refused_requests{0}, damaged_requests{0};
};

// One thread with the connections that were dealt to it, which no other thread touches.
struct Worker {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  std::jthread thread;
};

// Does it ask for exactly one tile whose hash is known? REQUIRES: CheckRange accepted it.
bool IsTile(const ReadRequest& request, const ReadableSlot& slot) {
  return request.offset % kTileBytes == 0 &&
         request.offset / kTileBytes < slot.tile_hashes.size() &&
         request.length == std::min<uint64_t>(kTileBytes, slot.bytes.size() - request.offset);
}

StatusOr<std::vector<std::byte>> WindowsOf(const ReadableSlot& slot) {
  if (slot.windows == nullptr) {
    return FailedPrecondition(
        "the slot has no windows for one-sided reads: it was taken over from a reader, or its host "
        "has no device");
  }
  return EncodeRmaSource(*slot.windows);
}

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const TcpServerOptions& options, SlotReads& reads,
             Counters& counters)
      : socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        options_(options),
        reads_(reads),
        counters_(counters) {}
  ~Connection() { --counters_.connections; }

  // A coroutine of its owner: `self` keeps the connection while it runs.
  static asio::awaitable<void> Serve(std::shared_ptr<Connection> self) {
    boost::system::error_code error;
    self->socket_.set_option(tcp::no_delay(true), error);
    self->socket_.non_blocking(true, error);
    auto patience = self->options_.first_request_timeout;
    while (!error) {
      self->answer_end_ = std::chrono::steady_clock::time_point::max();
      self->Limit(patience);
      std::array<std::byte, kRequestBytes> bytes;
      co_await asio::async_read(self->socket_, asio::buffer(bytes),
                                asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
      const auto request = ParseRequest(bytes);
      self->answer_end_ = std::chrono::steady_clock::now() + self->options_.answer_timeout;
      self->Limit(self->options_.send_timeout);
      if (!request.ok()) {  // where the next request begins is not known
        ++self->counters_.damaged_requests;
        co_await self->SendError(0, request.status(), error);
        break;
      }
      co_await self->AnswerTo(*request, error);
      if (self->valid_) patience = self->options_.idle_timeout;
    }
    self->timer_.cancel();
    self->socket_.close(error);
  }

 private:
  // The connection is closed when nothing calls this again in time. Called for every part of an
  // answer, so a timer that runs out earlier is left to find out what became of the limit.
  void Limit(std::chrono::milliseconds patience) {
    limit_ = std::min(std::chrono::steady_clock::now() + patience, answer_end_);
    if (!armed_ || timer_.expiry() > limit_) Arm();
  }
  void Arm() {
    armed_ = true;
    timer_.expires_at(limit_);
    timer_.async_wait([self = weak_from_this()](const boost::system::error_code& cancelled) {
      const auto connection = self.lock();
      if (cancelled || connection == nullptr) return;
      if (connection->limit_ > std::chrono::steady_clock::now()) return connection->Arm();
      boost::system::error_code ignored;
      connection->socket_.close(ignored);
    });
  }

  asio::awaitable<void> AnswerTo(ReadRequest request, boost::system::error_code& error) {
    auto slot = reads_.OpenForRead(request.handle);
    Status refused = slot.status();
    if (refused.ok()) {
      valid_ = true;
      if (request.kind == RequestKind::kConfirm) {
        const auto facts = EncodeFacts(slot->facts);
        co_await SendBytes(request.request_id, facts, error);
        co_return;
      }
      if (request.kind == RequestKind::kWindows) {
        auto windows = WindowsOf(*slot);
        refused = windows.status();
        if (refused.ok()) {
          co_await SendBytes(request.request_id, *windows, error);
          co_return;
        }
      } else if (!options_.sends_bytes) {
        refused = FailedPrecondition(
            "this host's versions are pulled by RDMA alone (require_rdma of the weight store)");
      }
    }
    if (refused.ok()) {
      const StatusOr<uint64_t> size = CheckRange(request, slot->bytes.size());
      refused = size.status();
      if (refused.ok() && *size > kMaxAnswerBytes) {
        refused = InvalidArgument("length: " + std::to_string(*size) +
                                  " bytes in one answer, at most 4 MiB; split the request");
      }
      if (refused.ok() && request.num_loops > 0) {
        packed_.resize(*size);
        PackRuns(slot->bytes, request.offset, request.length,
                 std::span(request.loops).first(request.num_loops), packed_.data());
        refused = reads_.CheckReadable(request.handle);
        if (refused.ok()) {
          co_await SendBytes(request.request_id, packed_, error);
          co_return;
        }
      } else if (refused.ok()) {
        Answer answer = {.request_id = request.request_id, .length = request.length};
        if (IsTile(request, *slot)) {
          answer.hash = slot->tile_hashes[request.offset / kTileBytes];
        } else {
          HashPayload(&answer, slot->bytes.subspan(request.offset, request.length));
        }
        refused = reads_.CheckReadable(request.handle);
        if (refused.ok()) {
          const auto header = EncodeAnswer(answer);
          co_await SendHeader(header, error);
          if (!error) co_await SendFile(slot->fd, request.offset, request.length, error);
          co_return;
        }
      }
    }
    ++counters_.refused_requests;
    co_await SendError(request.request_id, refused, error);
  }

  asio::awaitable<void> SendBytes(uint64_t request_id, std::span<const std::byte> bytes,
                                  boost::system::error_code& error) {
    Answer answer = {.request_id = request_id, .length = bytes.size()};
    HashPayload(&answer, bytes);
    const auto header = EncodeAnswer(answer);
    const std::array<asio::const_buffer, 2> buffers = {asio::buffer(header),
                                                       asio::buffer(bytes.data(), bytes.size())};
    co_await asio::async_write(socket_, buffers, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    ++counters_.answers;
    counters_.sent_bytes += bytes.size();
  }

  asio::awaitable<void> SendError(uint64_t request_id, Status status,
                                  boost::system::error_code& error) {
    const std::string bytes = EncodeError(status);
    Answer answer = {.code = status.code(), .request_id = request_id, .length = bytes.size()};
    HashPayload(&answer, std::as_bytes(std::span(bytes)));
    const auto header = EncodeAnswer(answer);
    const std::array<asio::const_buffer, 2> buffers = {asio::buffer(header), asio::buffer(bytes)};
    co_await asio::async_write(socket_, buffers, asio::redirect_error(asio::use_awaitable, error));
  }

  // Held back by the kernel until bytes of SendFile follow.
  asio::awaitable<void> SendHeader(std::span<const std::byte> header,
                                   boost::system::error_code& error) {
    while (!header.empty()) {
      const ssize_t sent = ::send(socket_.native_handle(), header.data(), header.size(),
                                  MSG_MORE | MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) {
        header = header.subspan(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        co_await socket_.async_wait(tcp::socket::wait_write,
                                    asio::redirect_error(asio::use_awaitable, error));
        if (error) co_return;
      } else if (errno != EINTR) {
        error.assign(errno, boost::system::system_category());
        co_return;
      }
    }
  }

  asio::awaitable<void> SendFile(int fd, uint64_t offset, uint64_t length,
                                 boost::system::error_code& error) {
    auto at = static_cast<off_t>(offset);
    for (uint64_t left = length; left > 0;) {
      const ssize_t sent = ::sendfile(socket_.native_handle(), fd, &at, left);
      if (sent > 0) {
        left -= static_cast<uint64_t>(sent);
        counters_.sent_bytes += static_cast<uint64_t>(sent);
        Limit(options_.send_timeout);
      } else if (sent < 0 && errno == EAGAIN) {
        co_await socket_.async_wait(tcp::socket::wait_write,
                                    asio::redirect_error(asio::use_awaitable, error));
        if (error) co_return;
      } else if (sent == 0 || errno != EINTR) {
        error.assign(sent == 0 ? EIO : errno, boost::system::system_category());
        co_return;
      }
    }
    ++counters_.answers;
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  const TcpServerOptions& options_;
  SlotReads& reads_;
  Counters& counters_;
  bool valid_ = false;  // a handle of it was
  bool armed_ = false;
  std::chrono::steady_clock::time_point limit_, answer_end_;
  std::vector<std::byte> packed_;
};

}  // namespace

struct TcpServer::Impl {
  Impl(const TcpServerOptions& o, SlotReads& r) : options(o), reads(r) {
    for (int i = 0; i < o.threads; ++i) workers.push_back(std::make_unique<Worker>());
    acceptor.emplace(workers[0]->io);
  }

  const TcpServerOptions options;
  SlotReads& reads;
  Counters counters;
  std::string address;
  std::vector<std::unique_ptr<Worker>> workers;  // the first one accepts as well
  std::optional<tcp::acceptor> acceptor;

  asio::awaitable<void> Accept() {
    for (size_t next = 0;; ++next) {
      boost::system::error_code error;
      asio::io_context& io = workers[next % workers.size()]->io;
      tcp::socket socket(io);
      co_await acceptor->async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) co_return;
      if (error) {  // out of descriptors, say: wait instead of spinning
        asio::steady_timer pause(workers[0]->io, std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      if (counters.connections >= static_cast<uint64_t>(options.max_connections)) {
        ++counters.refused_connections;
        continue;  // closes the socket
      }
      ++counters.connections;
      auto connection = std::make_shared<Connection>(std::move(socket), options, reads, counters);
      asio::co_spawn(io, Connection::Serve(std::move(connection)), asio::detached);
    }
  }
};

StatusOr<std::unique_ptr<TcpServer>> TcpServer::Start(const TcpServerOptions& options,
                                                      SlotReads& reads) {
  if (options.threads < 1) return InvalidArgument("tcp.threads: must be at least 1");
  if (options.max_connections < 1) {
    return InvalidArgument("tcp.max_connections: must be at least 1");
  }
  TITAN_ASSIGN_OR_RETURN(const runtime::HostPort wanted, runtime::ParseHostPort(options.listen));
  boost::system::error_code error;
  const auto ip = asio::ip::make_address(runtime::NumericHost(wanted), error);
  if (error) return InvalidArgument("tcp.listen: '" + wanted.host + "' is not an IP address");
  auto impl = std::make_unique<Impl>(options, reads);
  const tcp::endpoint endpoint(ip, wanted.port);
  impl->acceptor->open(endpoint.protocol(), error);
  if (!error) impl->acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl->acceptor->bind(endpoint, error);
  if (!error) impl->acceptor->listen(tcp::acceptor::max_listen_connections, error);
  if (error) return runtime::CannotListen(wanted, error.value());
  const auto bound = impl->acceptor->local_endpoint(error);
  if (error) return Unavailable("tcp.listen: " + error.message());
  impl->address = runtime::ToText({bound.address().to_string(), bound.port()});
  asio::co_spawn(impl->workers[0]->io, impl->Accept(), asio::detached);
  for (auto& worker : impl->workers) {
    worker->thread = std::jthread([raw = worker.get()] {
      // sendfile raises it where send would not, for a peer that is gone.
      sigset_t pipe;
      sigemptyset(&pipe);
      sigaddset(&pipe, SIGPIPE);
      pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
      raw->io.run();
    });
  }
  return std::unique_ptr<TcpServer>(new TcpServer(std::move(impl)));
}

TcpServer::TcpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TcpServer::~TcpServer() {
  for (auto& worker : impl_->workers) worker->io.stop();
  for (auto& worker : impl_->workers) worker->thread.join();
  impl_->acceptor.reset();
  // With what was left of the connections, which count themselves out. The first one's waiting
  // accept holds a socket of another's, so it goes first.
  for (auto& worker : impl_->workers) worker.reset();
}

const std::string& TcpServer::address() const { return impl_->address; }

TcpServerStats TcpServer::Stats() const {
  const Counters& c = impl_->counters;
  return {.connections = c.connections,
          .refused_connections = c.refused_connections,
          .answers = c.answers,
          .sent_bytes = c.sent_bytes,
          .refused_requests = c.refused_requests,
          .damaged_requests = c.damaged_requests};
}

}  // namespace titan::weightstore::lanes
