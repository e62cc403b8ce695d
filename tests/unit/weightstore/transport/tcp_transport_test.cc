// SPDX-License-Identifier: Apache-2.0
//
// Goal: the TCP lane delivers the bytes of the handle's version or an error, whatever happens to
// the lease, the slot, the wire or the request; a hostile client cannot hurt the server. Method:
// server and client in one process over loopback, a proxy that turns bits, requests written by
// hand.
#include "weightstore/transport/tcp_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "tests/support/sanitized.h"
#include "tests/support/served_slots.h"
#include "weightstore/transport/tcp_server.h"
#include "weightstore/transport/wire.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::ByteOf;
using testing::ConnectLoopback;
using testing::FlippingProxy;
using testing::PortOf;
using testing::ServedSlots;

SteadyTime Soon() { return steady_clock::now() + seconds(20); }

class TcpTransportTest : public ::testing::Test {
 protected:
  void Serve(uint64_t slot_bytes, TcpServerOptions options = {}) {
    lease_ = slots_.Add(slot_bytes, 4);
    auto server = TcpServer::Start(options, slots_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  StatusOr<std::unique_ptr<RemoteSlot>> Open(const PullGrant& grant,
                                             const TcpTransportOptions& options = {},
                                             std::string address = "") {
    if (address.empty()) address = server_->address();
    auto transport = TcpTransport::Create(address, options);
    if (!transport.ok()) return transport.status();
    return (*transport)->Open(grant, Soon());
  }
  Status ReadAll(const PullGrant& grant, const TcpTransportOptions& options = {},
                 const std::string& address = "") {
    auto slot = Open(grant, options, address);
    if (!slot.ok()) return slot.status();
    got_.assign((*slot)->slot_bytes(), std::byte{0xee});
    const std::vector<Piece> pieces = {{.source_offset = 0, .destination = got_}};
    const Status status = (*slot)->Read(pieces, Soon());
    corrupt_ = (*slot)->corrupt_answers();
    return status;
  }
  bool GotVersion(uint64_t version) const {
    for (size_t i = 0; i < got_.size(); ++i) {
      if (got_[i] != ByteOf(version, i)) return false;
    }
    return true;
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 4000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }

  ServedSlots slots_;
  uint64_t lease_ = 0;
  std::unique_ptr<TcpServer> server_;
  std::vector<std::byte> got_;
  uint64_t corrupt_ = 0;
};

void ExpectReason(const Status& status, std::string_view reason) {
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status;
  EXPECT_EQ(ReasonOf(status), reason) << status;
}

TEST_F(TcpTransportTest, ReadsRangesAndPackedRunsWhateverTheStreams) {
  Serve(100'003);
  for (const auto& [streams, threads, window, piece] :
       std::vector<std::array<int, 4>>{{1, 1, 1, 4096}, {4, 1, 2, 777}, {3, 3, 5, 50'000}}) {
    auto slot = Open(slots_.GrantOf(lease_), {.streams = streams,
                                              .threads = threads,
                                              .window = window,
                                              .piece_bytes = static_cast<uint64_t>(piece)});
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ((*slot)->slot_bytes(), 100'003u);
    std::vector<std::byte> one(100'003), two(1), three(4 * 3 * 5);
    const std::vector<Piece> pieces = {
        {.source_offset = 0, .destination = one},
        {.source_offset = 100'002, .destination = two},
        {.source_offset = 17, .destination = three, .run_bytes = 5, .loops = {{4, 1000}, {3, 90}}}};
    const Status status = (*slot)->Read(pieces, Soon());
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one[i], ByteOf(4, i)) << i;
    EXPECT_EQ(two[0], ByteOf(4, 100'002));
    for (size_t i = 0; i < three.size(); ++i) {
      ASSERT_EQ(three[i], ByteOf(4, 17 + i / 15 * 1000 + i / 5 % 3 * 90 + i % 5)) << i;
    }
    EXPECT_TRUE((*slot)->Read({}, Soon()).ok());
  }
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
}

TEST_F(TcpTransportTest, WrongHandlesAreRefusedByName) {
  Serve(5000);
  EXPECT_TRUE(ReadAll(slots_.GrantOf(lease_)).ok());
  PullGrant grant = slots_.GrantOf(lease_);
  grant.lease.grant += 1;
  ExpectReason(ReadAll(grant), kStaleHandle);
  grant = slots_.GrantOf(lease_);
  grant.epoch -= 1;
  ExpectReason(ReadAll(grant), kEpochSuperseded);
  grant = slots_.GrantOf(lease_);
  grant.lease.lease_id = 77;
  ExpectReason(ReadAll(grant), kLeaseExpired);
  grant = slots_.GrantOf(lease_);
  grant.token.low ^= 1;
  EXPECT_EQ(ReadAll(grant).code(), StatusCode::kFailedPrecondition);
  grant = slots_.GrantOf(lease_);
  grant.lease.version = 5;
  EXPECT_EQ(ReadAll(grant).code(), StatusCode::kDataLoss);
  grant = slots_.GrantOf(lease_);
  grant.expires = steady_clock::now();  // on this side's clock
  ExpectReason(ReadAll(grant), kLeaseExpired);
  EXPECT_TRUE(ReadAll(slots_.GrantOf(lease_)).ok());
}

TEST_F(TcpTransportTest, WhatEndsDuringAReadEndsTheRead) {
  for (const int what : {0, 1, 2}) {
    ServedSlots slots;
    const uint64_t lease = slots.Add(400'000, 4);
    auto server = TcpServer::Start({}, slots);
    ASSERT_TRUE(server.ok());
    auto transport = TcpTransport::Create((*server)->address(), {.piece_bytes = 1000});
    auto slot = (*transport)->Open(slots.GrantOf(lease), Soon());
    ASSERT_TRUE(slot.ok()) << slot.status();
    std::atomic<int> answers{0};
    slots.before_second_look = [&] {
      if (++answers != 100) return;
      if (what == 0) slots.EndLease();
      if (what == 1) slots.RaiseGrants();
      if (what == 2) slots.RaiseEpoch();
    };
    std::vector<std::byte> got(400'000);
    const std::vector<Piece> pieces = {{.source_offset = 0, .destination = got}};
    const std::string_view reasons[] = {kLeaseExpired, kStaleHandle, kEpochSuperseded};
    ExpectReason((*slot)->Read(pieces, Soon()), reasons[what]);
    ExpectReason((*slot)->Confirm(Soon()), reasons[what]);
  }
}

// The slot gets another version after an answer was hashed and before it is sent.
TEST_F(TcpTransportTest, BytesThatChangeBeforeTheyAreSentAreNotTaken) {
  Serve(300'000);
  std::atomic<int> answers{0};
  std::atomic<bool> changed{false};
  slots_.before_second_look = [&] {
    if (++answers != 3) return;
    testing::Overwrite(slots_.bytes(lease_));
    changed = true;
  };
  const TcpTransportOptions one = {.streams = 1, .window = 1, .piece_bytes = 50'000};
  auto slot = Open(slots_.GrantOf(lease_), one);
  ASSERT_TRUE(slot.ok());
  std::vector<std::byte> got(150'000);
  const std::vector<Piece> pieces = {{.source_offset = 0, .destination = got}};
  slots_.num_opens = 0;
  const Status status = (*slot)->Read(pieces, Soon());
  EXPECT_TRUE(changed);
  EXPECT_EQ((*slot)->corrupt_answers(), 1u) << status;  // seen, and asked for again
}

TEST_F(TcpTransportTest, OneBitTurnedOnTheWayIsAlwaysFound) {
  Serve(30'000);
  const TcpTransportOptions options = {.streams = 1, .window = 2, .piece_bytes = 5000};
  // What the server sends: the confirmation (72 bytes), six answers of 5040, the confirmation.
  int again = 0, lost = 0;
  std::vector<uint64_t> places;
  for (uint64_t at = 0; at < 80; ++at) places.push_back(at);
  for (uint64_t at = 80; at < 72 + 6 * 5040 + 72; at += 611) places.push_back(at);
  for (const uint64_t at : places) {
    FlippingProxy proxy(PortOf(server_->address()), {at}, {});
    got_.clear();
    const Status status = ReadAll(slots_.GrantOf(lease_), options, proxy.address());
    if (status.ok()) {
      EXPECT_EQ(corrupt_, 1u) << "byte " << at;
      EXPECT_TRUE(GotVersion(4)) << "byte " << at;
      ++again;
    } else {
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status << " byte " << at;
      ++lost;
    }
  }
  EXPECT_GT(again, 20);  // in the bytes of an answer
  EXPECT_GT(lost, 30);   // in a header: where the next answer begins is not known
  for (uint64_t at = 0; at < kRequestBytes; at += 5) {
    FlippingProxy proxy(PortOf(server_->address()), {}, {at});
    EXPECT_FALSE(ReadAll(slots_.GrantOf(lease_), options, proxy.address()).ok());
  }
  // The same answer damaged twice: not asked for a third time.
  FlippingProxy proxy(PortOf(server_->address()), {32 + 40 + 40 + 100, 32 + 40 + 5040 + 40 + 100},
                      {});
  const TcpTransportOptions single = {.streams = 1, .window = 1, .piece_bytes = 5000};
  const Status status = ReadAll(slots_.GrantOf(lease_), single, proxy.address());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  EXPECT_EQ(ReasonOf(status), kDigestMismatch);
}

// The daemon hashed the tiles when it verified the slot; memory fails later.
TEST_F(TcpTransportTest, ABitThatTurnsInAVerifiedSlotIsFound) {
  Serve(2 * kTileBytes + 999);
  slots_.HashTiles(lease_);
  EXPECT_TRUE(ReadAll(slots_.GrantOf(lease_)).ok());
  EXPECT_TRUE(GotVersion(4));
  EXPECT_TRUE(ReadAll(slots_.GrantOf(lease_), {.piece_bytes = 5000}).ok());  // no whole tiles
  EXPECT_TRUE(GotVersion(4));
  for (const uint64_t at : {uint64_t{0}, kTileBytes + 7, 2 * kTileBytes + 998}) {
    slots_.bytes(lease_)[at] ^= std::byte{8};
    const Status status = ReadAll(slots_.GrantOf(lease_));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << at;
    EXPECT_EQ(ReasonOf(status), kDigestMismatch) << at;
    EXPECT_EQ(corrupt_, 2u);
    slots_.bytes(lease_)[at] ^= std::byte{8};
  }
  EXPECT_TRUE(ReadAll(slots_.GrantOf(lease_)).ok());
}

// Requests that the client library would not send.
TEST_F(TcpTransportTest, HostileRequestsAreAnsweredAndHurtNobody) {
  Serve(5000);
  const UniqueFd socket = ConnectLoopback(PortOf(server_->address()));
  const auto ask = [&](ReadRequest request) {
    request.handle = slots_.GrantOf(lease_).handle();
    const auto bytes = EncodeRequest(request);
    EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    std::array<std::byte, kAnswerBytes> header;
    EXPECT_EQ(recv(socket.get(), header.data(), header.size(), MSG_WAITALL),
              static_cast<ssize_t>(header.size()));
    const auto answer = ParseAnswer(header);
    EXPECT_TRUE(answer.ok()) << answer.status();
    std::string body(answer->length, '\0');
    EXPECT_EQ(recv(socket.get(), body.data(), body.size(), MSG_WAITALL),
              static_cast<ssize_t>(body.size()));
    return answer->code;
  };
  const uint64_t most = ~uint64_t{0};
  const std::array<PackLoop, 3> none = {};
  EXPECT_EQ(ask({.offset = 0, .length = 5000}), StatusCode::kOk);
  EXPECT_EQ(ask({.offset = 0, .length = 5001}), StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({.offset = most, .length = 2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({.offset = 1, .length = most}), StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({.offset = 0, .length = 0}), StatusCode::kInvalidArgument);
  std::array<PackLoop, 3> loops = none;
  loops[0] = {most, 0};  // the whole memory, out of one byte
  EXPECT_EQ(ask({.length = 1, .num_loops = 1, .loops = loops}), StatusCode::kInvalidArgument);
  loops[0] = {(4u << 20) + 1, 0};
  EXPECT_EQ(ask({.length = 1, .num_loops = 1, .loops = loops}), StatusCode::kInvalidArgument);
  loops[0] = {2, most};
  EXPECT_EQ(ask({.length = 1, .num_loops = 1, .loops = loops}), StatusCode::kInvalidArgument);
  loops[0] = {16, 3};
  EXPECT_EQ(ask({.length = 8, .num_loops = 1, .loops = loops}), StatusCode::kOk);
  EXPECT_EQ(ask({.kind = RequestKind::kConfirm}), StatusCode::kOk);
  EXPECT_EQ(server_->Stats().refused_requests, 7u);

  // What is no request ends its connection, with an answer that says so.
  for (const int byte : {0, 4, 50}) {
    const UniqueFd other = ConnectLoopback(PortOf(server_->address()));
    auto bytes = EncodeRequest({.length = 1});
    bytes[static_cast<size_t>(byte)] ^= std::byte{0x40};
    EXPECT_GT(send(other.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    std::array<std::byte, kAnswerBytes + kMaxErrorBytes> answer;
    EXPECT_GT(recv(other.get(), answer.data(), answer.size(), MSG_WAITALL),
              static_cast<ssize_t>(kAnswerBytes));  // until the server closes
  }
  EXPECT_EQ(server_->Stats().damaged_requests, 3u);
  EXPECT_TRUE(ReadAll(slots_.GrantOf(lease_)).ok());
}

TEST_F(TcpTransportTest, IdleHalfAndTooManyConnectionsAreClosed) {
  Serve(5000, {.max_connections = 3, .first_request_timeout = milliseconds(100)});
  const auto closed = [](const UniqueFd& socket) {
    char byte;
    return recv(socket.get(), &byte, 1, 0) <= 0;
  };
  const UniqueFd silent = ConnectLoopback(PortOf(server_->address()));
  const UniqueFd half = ConnectLoopback(PortOf(server_->address()));
  EXPECT_EQ(send(half.get(), "TWR1", 4, MSG_NOSIGNAL), 4);
  EXPECT_TRUE(closed(silent));
  EXPECT_TRUE(closed(half));
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
  std::vector<UniqueFd> many;
  for (int i = 0; i < 8; ++i) many.push_back(ConnectLoopback(PortOf(server_->address())));
  for (const UniqueFd& socket : many) EXPECT_TRUE(closed(socket));
  EXPECT_GE(server_->Stats().refused_connections, 1u);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
  EXPECT_TRUE(ReadAll(slots_.GrantOf(lease_), {.streams = 2}).ok());
}

TEST_F(TcpTransportTest, ASilentSourceIsGivenUpInTime) {
  Serve(10);
  uint16_t port;
  const UniqueFd listener = testing::ListenLoopback(&port);  // accepts, says nothing
  const std::string address = "127.0.0.1:" + std::to_string(port);
  auto begin = steady_clock::now();
  EXPECT_EQ(ReadAll(slots_.GrantOf(lease_), {}, address).code(), StatusCode::kUnavailable);
  EXPECT_LT(steady_clock::now() - begin, seconds(titan::testing::Rounds(2, 20)));
  auto transport = TcpTransport::Create(address, {});
  begin = steady_clock::now();
  EXPECT_EQ((*transport)->Open(slots_.GrantOf(lease_), begin + milliseconds(50)).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_LT(steady_clock::now() - begin, seconds(1));
  server_.reset();  // nobody listens
  const UniqueFd gone = testing::ListenLoopback(&port);
  EXPECT_EQ(shutdown(gone.get(), SHUT_RDWR), 0);
  EXPECT_EQ(ReadAll(slots_.GrantOf(lease_), {}, "127.0.0.1:" + std::to_string(port)).code(),
            StatusCode::kUnavailable);
}

TEST_F(TcpTransportTest, OptionsAndPiecesAreChecked) {
  Serve(5000);
  EXPECT_FALSE(TcpTransport::Create("127.0.0.1:1", {.streams = 0}).ok());
  EXPECT_FALSE(TcpTransport::Create("127.0.0.1:1", {.streams = 2, .threads = 3}).ok());
  EXPECT_FALSE(TcpTransport::Create("127.0.0.1:1", {.piece_bytes = kMaxAnswerBytes + 1}).ok());
  EXPECT_FALSE(TcpTransport::Create("host.example:1", {}).ok());
  EXPECT_FALSE(TcpServer::Start({.listen = "nowhere:0"}, slots_).ok());
  EXPECT_EQ(TcpServer::Start({.listen = server_->address()}, slots_).status().code(),
            StatusCode::kUnavailable);
  auto slot = Open(slots_.GrantOf(lease_));
  ASSERT_TRUE(slot.ok());
  std::vector<std::byte> got(8);
  for (const Piece& piece : std::vector<Piece>{
           {.source_offset = 4993, .destination = got},
           {.source_offset = ~uint64_t{0}, .destination = got},
           {.destination = got, .run_bytes = 3, .loops = {{2, 10}}},
           {.destination = got, .run_bytes = 8, .loops = {{1, 0}, {1, 0}, {1, 0}, {1, 0}}}}) {
    EXPECT_EQ((*slot)->Read(std::span(&piece, 1), Soon()).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE((*slot)->Confirm(Soon()).ok());
}

TEST_F(TcpTransportTest, ThousandVersionsLeaveNoDescriptors) {
  Serve(20'000);
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  EXPECT_TRUE(ReadAll(slots_.GrantOf(lease_)).ok());
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
  const auto before = descriptors();
  for (int i = 0; i < titan::testing::Rounds(1000, 100); ++i) {
    PullGrant grant = slots_.GrantOf(lease_);
    grant.lease.grant += i % 5 == 0;  // some fail
    ASSERT_EQ(ReadAll(grant, {.streams = 2, .piece_bytes = 4096}).ok(), i % 5 != 0);
  }
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace titan::weightstore::lanes
