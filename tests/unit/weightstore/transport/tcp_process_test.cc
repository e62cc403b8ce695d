// SPDX-License-Identifier: Apache-2.0
//
// Goal: a source or a reader that is killed or stopped harms nobody: errors within 2 s, no torn
// read, nothing written after a read has ended. Method: real child processes, SIGKILL and SIGSTOP.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/sanitized.h"
#include "tests/support/served_slots.h"
#include "weightstore/transport/tcp_server.h"
#include "weightstore/transport/tcp_transport.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::ByteOf;
using testing::ServedSlots;
using titan::testing::ChildProcess;
using titan::testing::Eventually;

constexpr uint64_t kSlotBytes = 24 << 20;
constexpr uint64_t kVersion = 4;
// A dead or silent source is given up by then.
constexpr milliseconds kSoon{titan::testing::Rounds(2'000, 20'000)};

SteadyTime In(milliseconds time) { return steady_clock::now() + time; }

// A process that serves a slot, sends its port and does nothing else.
void ServeForEver(ChildProcess& parent) {
  ServedSlots slots;
  slots.Add(kSlotBytes, kVersion);
  auto server = TcpServer::Start({}, slots);
  if (!server.ok()) _exit(2);
  parent.Send(testing::PortOf((*server)->address()));
  for (;;) pause();
}

PullGrant Grant() {
  PullGrant grant;  // what ServedSlots gives for its first slot
  grant.lease.lease_id = 1;
  grant.lease.grant = 1;
  grant.lease.version = kVersion;
  grant.lease.digest = {kVersion, 7};
  grant.epoch = 3;
  grant.token = {11, 5};
  return grant;
}

StatusOr<std::unique_ptr<RemoteSlot>> Open(uint64_t port, const TcpTransportOptions& options = {}) {
  auto transport = TcpTransport::Create("127.0.0.1:" + std::to_string(port), options);
  if (!transport.ok()) return transport.status();
  return (*transport)->Open(Grant(), In(seconds(20)));
}

Status ReadInto(RemoteSlot& slot, std::span<std::byte> got) {
  const std::vector<Piece> pieces = {{.source_offset = 0, .destination = got}};
  return slot.Read(pieces, In(seconds(20)));
}

bool Whole(std::span<const std::byte> got) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != ByteOf(kVersion, i)) return false;
  }
  return true;
}

TEST(TcpProcessTest, AKilledSourceFailsTheReadAtOnceAndAnotherServes) {
  ChildProcess other(ServeForEver);
  const uint64_t other_port = other.Receive();
  const char* kills = std::getenv("TITAN_KILL_POINTS");
  const int rounds = kills != nullptr ? std::atoi(kills) : titan::testing::Rounds(10, 3);
  std::mt19937_64 random(7);
  for (int round = 0; round < rounds; ++round) {
    const auto delay = std::chrono::microseconds(random() % 15'000);
    ChildProcess source(ServeForEver);
    auto slot = Open(source.Receive(), {.piece_bytes = 64 << 10});
    ASSERT_TRUE(slot.ok()) << slot.status();
    steady_clock::time_point killed;
    std::jthread killer([&] {
      std::this_thread::sleep_for(delay);
      killed = steady_clock::now();
      source.Kill();
    });
    std::vector<std::byte> got(kSlotBytes);
    Status status = OkStatus();
    do {
      status = ReadInto(**slot, got);
      EXPECT_TRUE(!status.ok() || Whole(got));
    } while (status.ok());
    const auto ended = steady_clock::now();
    killer.join();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_LT(ended - killed, kSoon);
    if (round == 0) {
      auto from_other = Open(other_port);
      ASSERT_TRUE(from_other.ok()) << from_other.status();
      ASSERT_TRUE(ReadInto(**from_other, got).ok());
      EXPECT_TRUE(Whole(got));
    }
  }
}

TEST(TcpProcessTest, AStoppedSourceIsGivenUpAndItsLateBytesGoNowhere) {
  ChildProcess source(ServeForEver);
  auto slot = Open(source.Receive(), {.piece_bytes = 64 << 10});
  ASSERT_TRUE(slot.ok()) << slot.status();
  steady_clock::time_point stopped;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(2));
    stopped = steady_clock::now();
    source.Signal(SIGSTOP);
  });
  std::vector<std::byte> got(kSlotBytes);
  Status status = OkStatus();
  do {
    status = ReadInto(**slot, got);
  } while (status.ok());
  const auto ended = steady_clock::now();
  stopper.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_LT(ended - stopped, kSoon);
  std::fill(got.begin(), got.end(), std::byte{0xee});
  source.Signal(SIGCONT);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(
      std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{0xee}; }));
  // Awake, it serves again.
  const Status again = ReadInto(**slot, got);
  ASSERT_TRUE(again.ok()) << again;
  EXPECT_TRUE(Whole(got));
}

TEST(TcpProcessTest, AKilledReaderLeavesNothingBehind) {
  ServedSlots slots;
  slots.Add(kSlotBytes, kVersion);
  // Forked before this process has threads; the port comes by the pipe.
  ChildProcess reader([&](ChildProcess& parent) {
    auto slot = Open(parent.Receive(), {.piece_bytes = 16 << 10});
    if (!slot.ok()) _exit(3);
    std::vector<std::byte> got(kSlotBytes);
    for (;;) (void)ReadInto(**slot, got);
  });
  auto server = TcpServer::Start({}, slots);
  ASSERT_TRUE(server.ok());
  reader.Send(testing::PortOf((*server)->address()));
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().answers > 100; }));
  reader.Kill();
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().connections == 0; }));
}

TEST(TcpProcessTest, AStoppedReaderIsDroppedAndWhatItReadsAfterItsLeaseIsRefused) {
  ServedSlots slots;
  slots.Add(kSlotBytes, kVersion);
  ChildProcess reader([&](ChildProcess& parent) {
    auto slot = Open(parent.Receive(), {.piece_bytes = 16 << 10});
    if (!slot.ok()) _exit(3);
    std::vector<std::byte> got(kSlotBytes);
    Status status = OkStatus();
    while (status.ok()) {
      status = ReadInto(**slot, got);
      if (status.ok() && !Whole(got)) _exit(4);  // torn
    }
    _exit(status.code() == StatusCode::kAborted || status.code() == StatusCode::kUnavailable ? 0
                                                                                             : 5);
  });
  auto server = TcpServer::Start({.send_timeout = milliseconds(200)}, slots);
  ASSERT_TRUE(server.ok());
  reader.Send(testing::PortOf((*server)->address()));
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().answers > 100; }));
  reader.Signal(SIGSTOP);
  // Its lease ends and the slot is reused while it does not look.
  slots.EndLease();
  testing::Overwrite(slots.bytes(1));
  reader.Signal(SIGCONT);
  EXPECT_EQ(reader.Wait(), 0);
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().connections == 0; }));
}

// A reader that stops taking bytes in the middle of an answer does not keep its connection.
TEST(TcpProcessTest, AReaderThatTakesNothingIsDropped) {
  ServedSlots slots;
  slots.Add(kSlotBytes, kVersion);
  auto server = TcpServer::Start({.send_timeout = milliseconds(100)}, slots);
  ASSERT_TRUE(server.ok());
  const UniqueFd socket = testing::ConnectLoopback(testing::PortOf((*server)->address()));
  const int small = 4096;
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  for (int i = 0; i < 8; ++i) {
    ReadRequest request = {.handle = Grant().handle(), .length = 4 << 20};
    const auto bytes = EncodeRequest(request);
    EXPECT_GT(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  }
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().sent_bytes > 0; }));
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().connections == 0; }));
  EXPECT_LT((*server)->Stats().answers, 8u);
}

}  // namespace
}  // namespace titan::weightstore::lanes
