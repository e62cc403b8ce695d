// SPDX-License-Identifier: Apache-2.0
//
// Goal: a source or a reader that is killed or stopped harms nobody: errors within 2 s, no torn
// read, nothing written after a read has ended. Method: real child processes, SIGKILL and SIGSTOP.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

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

constexpr uint64_t kSlotBytes = 24 << 20;
constexpr uint64_t kVersion = 4;
// A dead or silent source is given up by then.
constexpr milliseconds kSoon{titan::testing::Rounds(2'000, 20'000)};

SteadyTime In(milliseconds time) { return steady_clock::now() + time; }

// A forked process that first sends its parent a number. Killed at the end.
class Child {
 public:
  explicit Child(const std::function<void(int to_parent)>& body) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      body(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    EXPECT_EQ(read(ends[0], &number, sizeof(number)), static_cast<ssize_t>(sizeof(number)));
    close(ends[0]);
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Signal(int signal) { kill(pid_, signal); }
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  uint64_t number = 0;

 private:
  pid_t pid_ = 0;
};

void Tell(int to_parent, uint64_t number) { (void)!write(to_parent, &number, sizeof(number)); }

// A process that serves a slot and does nothing else; its number is its port.
void ServeForEver(int to_parent) {
  ServedSlots slots;
  slots.Add(kSlotBytes, kVersion);
  auto server = TcpServer::Start({}, slots);
  if (!server.ok()) _exit(2);
  Tell(to_parent, testing::PortOf((*server)->address()));
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

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

TEST(TcpProcessTest, AKilledSourceFailsTheReadAtOnceAndAnotherServes) {
  Child other(ServeForEver);
  const char* kills = std::getenv("TITAN_KILL_POINTS");
  const int rounds = kills != nullptr ? std::atoi(kills) : titan::testing::Rounds(10, 3);
  std::mt19937_64 random(7);
  for (int round = 0; round < rounds; ++round) {
    const auto delay = std::chrono::microseconds(random() % 15'000);
    Child source(ServeForEver);
    auto slot = Open(source.number, {.piece_bytes = 64 << 10});
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
      auto from_other = Open(other.number);
      ASSERT_TRUE(from_other.ok()) << from_other.status();
      ASSERT_TRUE(ReadInto(**from_other, got).ok());
      EXPECT_TRUE(Whole(got));
    }
  }
}

TEST(TcpProcessTest, AStoppedSourceIsGivenUpAndItsLateBytesGoNowhere) {
  Child source(ServeForEver);
  auto slot = Open(source.number, {.piece_bytes = 64 << 10});
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
  // The reader is forked before this process has threads; the port goes to it by a pipe.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Child reader([&](int to_parent) {
    Tell(to_parent, 1);
    uint64_t port;
    if (read(ends[0], &port, sizeof(port)) != sizeof(port)) _exit(2);
    auto slot = Open(port, {.piece_bytes = 16 << 10});
    if (!slot.ok()) _exit(3);
    std::vector<std::byte> got(kSlotBytes);
    for (;;) (void)ReadInto(**slot, got);
  });
  auto server = TcpServer::Start({}, slots);
  ASSERT_TRUE(server.ok());
  Tell(ends[1], testing::PortOf((*server)->address()));
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().answers > 100; }));
  reader.Kill();
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().connections == 0; }));
  close(ends[0]);
  close(ends[1]);
}

TEST(TcpProcessTest, AStoppedReaderIsDroppedAndWhatItReadsAfterItsLeaseIsRefused) {
  ServedSlots slots;
  slots.Add(kSlotBytes, kVersion);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Child reader([&](int to_parent) {
    Tell(to_parent, 1);
    uint64_t port;
    if (read(ends[0], &port, sizeof(port)) != sizeof(port)) _exit(2);
    auto slot = Open(port, {.piece_bytes = 16 << 10});
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
  Tell(ends[1], testing::PortOf((*server)->address()));
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().answers > 100; }));
  reader.Signal(SIGSTOP);
  // Its lease ends and the slot is reused while it does not look.
  slots.EndLease();
  testing::Overwrite(slots.bytes(1));
  reader.Signal(SIGCONT);
  EXPECT_EQ(reader.Wait(), 0);
  EXPECT_TRUE(Eventually([&] { return (*server)->Stats().connections == 0; }));
  close(ends[0]);
  close(ends[1]);
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
