// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/tcp_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "core/base/check.h"
#include "core/runtime/address.h"
#include "weightstore/client/reason.h"
#include "weightstore/transport/wire.h"

namespace titan::weightstore::lanes {
namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kTick{20};     // between looks at deadlines
constexpr milliseconds kPaused{500};  // since the last look: this process was stopped
constexpr int kAttempts = 2;          // for an answer whose hash differs

// One request and where its answer goes.
struct Ask {
  ReadRequest request;
  std::span<std::byte> destination;
  int attempt = 1;
};

// The requests of one call, handed out to the streams in order; the first failure ends all.
class Work {
 public:
  Work(std::vector<Ask> asks, SteadyTime deadline) : asks_(std::move(asks)), deadline_(deadline) {}

  std::optional<Ask> Next() {
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= asks_.size()) return std::nullopt;
    return asks_[i];
  }
  void Fail(const Status& status) {
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
    failed_ = true;
  }
  bool failed() const { return failed_; }
  SteadyTime deadline() const { return deadline_; }
  Status TakeStatus() {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  const std::vector<Ask> asks_;
  const SteadyTime deadline_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Status status_ = OkStatus();
};

class Stream {
 public:
  Stream(asio::io_context& io, const std::string& address, const TcpTransportOptions& options,
         std::atomic<uint64_t>& corrupt)
      : socket_(io), address_(address), options_(options), corrupt_(corrupt) {}

  // Connects when it is not, then asks until nothing is left. Failures go to `work`.
  asio::awaitable<void> Run(Work& work) {
    running_ = true;
    const Status status = co_await Exchange(work);
    if (!status.ok()) {
      work.Fail(status);
      boost::system::error_code ignored;
      socket_.close(ignored);
      connected_ = false;
      in_flight_.clear();
    }
    waiting_ = false;
    running_ = false;
  }

  // Called every kTick while Run runs: ends what takes too long, or what others have failed.
  void Look(Work& work, SteadyTime now) {
    if (!running_) return;
    const auto patience = connected_ ? options_.stall_timeout : options_.connect_timeout;
    if (now >= work.deadline()) {
      work.Fail(DeadlineExceeded("reading from " + address_ + ": the deadline passed"));
    } else if (waiting_ && now - last_progress_ > patience) {
      work.Fail(Unavailable(address_ +
                            (connected_ ? ": sent nothing for " : ": no connection in ") +
                            std::to_string(patience.count()) + " ms"));
    }
    if (work.failed()) {  // Exchange finds its operation failed, and cleans up
      boost::system::error_code ignored;
      socket_.close(ignored);
    }
  }
  // This process did not run: the peer is not to blame.
  void Forgive(SteadyTime now) { last_progress_ = now; }
  bool running() const { return running_; }

 private:
  Status Gone(const boost::system::error_code& error) const {
    return Unavailable(address_ + ": " + error.message());
  }

  void Wait() {
    waiting_ = true;
    last_progress_ = steady_clock::now();
  }

  asio::awaitable<Status> Connect() {
    const auto parsed = runtime::ParseHostPort(address_);
    TITAN_CHECK(parsed.ok());  // Create has looked
    boost::system::error_code error;
    const auto ip = asio::ip::make_address(runtime::NumericHost(*parsed), error);
    TITAN_CHECK(!error);
    const tcp::endpoint endpoint(ip, parsed->port);
    Wait();
    co_await socket_.async_connect(endpoint, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return Gone(error);
    socket_.set_option(tcp::no_delay(true), error);
    connected_ = true;
    co_return OkStatus();
  }

  asio::awaitable<Status> Exchange(Work& work) {
    std::vector<std::byte> out;
    for (;;) {
      if (work.failed()) co_return Cancelled("another stream failed");
      out.clear();
      while (in_flight_.size() < static_cast<size_t>(options_.window)) {
        std::optional<Ask> ask = work.Next();
        if (!ask) break;
        Enqueue(*std::move(ask), &out);
      }
      if (in_flight_.empty()) co_return OkStatus();
      if (!connected_) {
        const Status connected = co_await Connect();
        if (!connected.ok()) co_return connected;
      }
      Status status = co_await Send(out);
      if (!status.ok()) co_return status;
      status = co_await Receive();
      if (!status.ok()) co_return status;
    }
  }

  void Enqueue(Ask ask, std::vector<std::byte>* out) {
    ask.request.request_id = next_id_++;
    const auto bytes = EncodeRequest(ask.request);
    out->insert(out->end(), bytes.begin(), bytes.end());
    in_flight_.push_back(std::move(ask));
  }

  asio::awaitable<Status> Send(const std::vector<std::byte>& out) {
    if (out.empty()) co_return OkStatus();
    Wait();
    boost::system::error_code error;
    co_await asio::async_write(socket_, asio::buffer(out),
                               asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return Gone(error);
    co_return OkStatus();
  }

  asio::awaitable<Status> ReadExactly(std::span<std::byte> into) {
    boost::system::error_code error;
    while (!into.empty()) {
      const size_t size = co_await socket_.async_read_some(
          asio::buffer(into.data(), into.size()), asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return Gone(error);
      last_progress_ = steady_clock::now();
      into = into.subspan(size);
    }
    co_return OkStatus();
  }

  // The answer of the oldest request.
  asio::awaitable<Status> Receive() {
    Wait();
    std::array<std::byte, kAnswerBytes> header;
    Status status = co_await ReadExactly(header);
    if (!status.ok()) co_return status;
    const auto answer = ParseAnswer(header);
    if (!answer.ok()) {
      ++corrupt_;
      co_return WithReason(Annotate(answer.status(), address_), kDigestMismatch);
    }
    Ask ask = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (answer->code != StatusCode::kOk) {
      std::string text(answer->length, '\0');
      const auto bytes = std::as_writable_bytes(std::span(text));
      status = co_await ReadExactly(bytes);
      if (!status.ok()) co_return status;
      if (!PayloadMatches(*answer, bytes)) {
        ++corrupt_;
        co_return WithReason(DataLoss(address_ + ": an error arrived damaged"), kDigestMismatch);
      }
      co_return Annotate(DecodeError(answer->code, text), address_);
    }
    if (answer->request_id != ask.request.request_id || answer->length != ask.destination.size()) {
      co_return DataLoss(address_ + ": answered something that was not asked");
    }
    status = co_await ReadExactly(ask.destination);
    if (!status.ok()) co_return status;
    if (PayloadMatches(*answer, ask.destination)) co_return OkStatus();
    ++corrupt_;
    if (ask.attempt >= kAttempts) {
      co_return WithReason(
          DataLoss(address_ + ": bytes from " + std::to_string(ask.request.offset) +
                   " on did not arrive as they were sent, " + std::to_string(kAttempts) + " times"),
          kDigestMismatch);
    }
    ++ask.attempt;
    std::vector<std::byte> again;
    Enqueue(std::move(ask), &again);
    co_return co_await Send(again);
  }

  tcp::socket socket_;
  const std::string& address_;
  const TcpTransportOptions& options_;
  std::atomic<uint64_t>& corrupt_;
  std::deque<Ask> in_flight_;  // oldest first
  uint64_t next_id_ = 1;
  bool connected_ = false;
  bool running_ = false;
  bool waiting_ = false;  // for the peer, since last_progress_
  SteadyTime last_progress_;
};

// A thread's share of the streams. The io_context runs only within a call.
struct Group {
  asio::io_context io{1};
  asio::steady_timer tick{io};
  std::vector<std::unique_ptr<Stream>> streams;

  bool running() const {
    return std::any_of(streams.begin(), streams.end(), [](const auto& s) { return s->running(); });
  }

  // num_streams of them take part.
  void Run(Work& work, size_t num_streams) {
    io.restart();
    for (size_t i = 0; i < std::min(num_streams, streams.size()); ++i) {
      asio::co_spawn(io, streams[i]->Run(work), [this, &work](std::exception_ptr thrown) {
        if (thrown) work.Fail(Internal("an exception in a stream of the TCP lane"));
        if (!running()) tick.cancel();
      });
    }
    asio::co_spawn(io, Watch(work), [](std::exception_ptr) {});
    io.run();
  }

  asio::awaitable<void> Watch(Work& work) {
    boost::system::error_code ignored;
    SteadyTime last_look = steady_clock::now();
    while (running()) {
      tick.expires_after(kTick);
      co_await tick.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      const SteadyTime now = steady_clock::now();
      for (const auto& stream : streams) {
        if (now - last_look > kPaused) stream->Forgive(now);
        stream->Look(work, now);
      }
      last_look = now;
    }
  }
};

class TcpSlot final : public RemoteSlot {
 public:
  TcpSlot(std::string address, const TcpTransportOptions& options, PullGrant grant)
      : address_(std::move(address)), options_(options), grant_(std::move(grant)) {
    for (int i = 0; i < options.threads; ++i) groups_.push_back(std::make_unique<Group>());
    for (int i = 0; i < options.streams; ++i) {
      Group& group = *groups_[static_cast<size_t>(i % options.threads)];
      group.streams.push_back(std::make_unique<Stream>(group.io, address_, options_, corrupt_));
    }
  }

  uint64_t slot_bytes() const override { return facts_.slot_bytes; }
  bool can_pack() const override { return true; }
  uint64_t corrupt_answers() const override { return corrupt_; }

  Status Read(std::span<const Piece> pieces, SteadyTime deadline) override {
    std::vector<Ask> asks;
    for (const Piece& piece : pieces) {
      TITAN_RETURN_IF_ERROR(CheckPiece(piece, facts_.slot_bytes));
      if (piece.loops.empty()) {
        Cut(piece, &asks);
      } else {
        Ask ask{.request = Request(RequestKind::kRead), .destination = piece.destination};
        ask.request.offset = piece.source_offset;
        ask.request.length = piece.run_bytes;
        ask.request.num_loops = static_cast<uint16_t>(piece.loops.size());
        std::copy(piece.loops.begin(), piece.loops.end(), ask.request.loops.begin());
        asks.push_back(ask);
      }
    }
    const size_t streams = std::min<size_t>(asks.size(), static_cast<size_t>(options_.streams));
    if (!asks.empty()) TITAN_RETURN_IF_ERROR(RunAll(std::move(asks), streams, deadline));
    return Confirm(deadline);
  }

  Status Confirm(SteadyTime deadline) override {
    TITAN_ASSIGN_OR_RETURN(const SlotFacts facts, AskFacts(deadline));
    if (facts != facts_) {
      return WithReason(Aborted(address_ + ": the slot is another one than before"), kStaleHandle);
    }
    return OkStatus();
  }

  Status Open(SteadyTime deadline) {
    TITAN_ASSIGN_OR_RETURN(facts_, AskFacts(deadline));
    if (facts_.version != grant_.lease.version || facts_.digest != grant_.lease.digest) {
      return DataLoss(address_ + ": the slot holds version " + std::to_string(facts_.version) +
                      " with digest " + ToHex(facts_.digest) + ", the lease is for version " +
                      std::to_string(grant_.lease.version) + " with digest " +
                      ToHex(grant_.lease.digest));
    }
    return OkStatus();
  }

  StatusOr<RmaSource> FindWindows(SteadyTime deadline) {
    std::vector<std::byte> bytes(kRmaSourceBytes);
    std::vector<Ask> asks = {{.request = Request(RequestKind::kWindows), .destination = bytes}};
    TITAN_RETURN_IF_ERROR(RunAll(std::move(asks), 1, deadline));
    return ParseRmaSource(bytes);
  }

 private:
  ReadRequest Request(RequestKind kind) const { return {.kind = kind, .handle = grant_.handle()}; }

  void Cut(const Piece& piece, std::vector<Ask>* asks) const {
    for (uint64_t done = 0; done < piece.destination.size();) {
      const uint64_t size = std::min(options_.piece_bytes, piece.destination.size() - done);
      Ask ask{.request = Request(RequestKind::kRead),
              .destination = piece.destination.subspan(done, size)};
      ask.request.offset = piece.source_offset + done;
      ask.request.length = size;
      asks->push_back(ask);
      done += size;
    }
  }

  StatusOr<SlotFacts> AskFacts(SteadyTime deadline) {
    std::array<std::byte, kSlotFactsBytes> bytes;
    std::vector<Ask> asks = {{.request = Request(RequestKind::kConfirm), .destination = bytes}};
    TITAN_RETURN_IF_ERROR(RunAll(std::move(asks), 1, deadline));
    // The lease, on this process's clock, after the last byte.
    if (steady_clock::now() >= grant_.expires) {
      return WithReason(Aborted("lease " + std::to_string(grant_.lease.lease_id) +
                                " ended while its version was read"),
                        kLeaseExpired);
    }
    return ParseFacts(bytes);
  }

  Status RunAll(std::vector<Ask> asks, size_t streams, SteadyTime deadline) {
    Work work(std::move(asks), deadline);
    {
      std::vector<std::jthread> threads;
      const size_t groups = std::min(groups_.size(), streams);
      const size_t each = (streams + groups - 1) / groups;
      for (size_t i = 1; i < groups; ++i) {
        threads.emplace_back([&, i] { groups_[i]->Run(work, each); });
      }
      groups_[0]->Run(work, each);
    }
    return work.TakeStatus();
  }

  const std::string address_;
  const TcpTransportOptions options_;
  const PullGrant grant_;
  SlotFacts facts_;
  std::atomic<uint64_t> corrupt_{0};
  std::vector<std::unique_ptr<Group>> groups_;
};

Status CheckOptions(const TcpTransportOptions& options) {
  const auto within = [](int value, int low, int high) { return value >= low && value <= high; };
  if (!within(options.streams, 1, 64)) return InvalidArgument("tcp.streams: 1 to 64");
  if (!within(options.threads, 1, options.streams)) {
    return InvalidArgument("tcp.threads: 1 to the number of streams");
  }
  if (!within(options.window, 1, 64)) return InvalidArgument("tcp.window: 1 to 64");
  if (options.piece_bytes < 1 || options.piece_bytes > kMaxAnswerBytes) {
    return InvalidArgument("tcp.piece_bytes: 1 to 4 MiB");
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(std::string address,
                                                             const TcpTransportOptions& options) {
  TITAN_RETURN_IF_ERROR(CheckOptions(options));
  TITAN_ASSIGN_OR_RETURN(const runtime::HostPort parsed, runtime::ParseHostPort(address));
  if (!runtime::IsNumeric(parsed)) {
    return InvalidArgument("'" + parsed.host + "' is not an IP address");
  }
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(address), options));
}

StatusOr<std::unique_ptr<RemoteSlot>> TcpTransport::Open(const PullGrant& grant,
                                                         SteadyTime deadline) {
  auto slot = std::make_unique<TcpSlot>(address_, options_, grant);
  TITAN_RETURN_IF_ERROR(slot->Open(deadline));
  return std::unique_ptr<RemoteSlot>(std::move(slot));
}

StatusOr<RmaSource> TcpTransport::FindWindows(const PullGrant& grant, SteadyTime deadline) const {
  return TcpSlot(address_, options_, grant).FindWindows(deadline);
}

}  // namespace titan::weightstore::lanes
