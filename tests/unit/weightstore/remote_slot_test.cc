// SPDX-License-Identifier: Apache-2.0
//
// Goal: one-sided reads copy what the host offers without its help, never pass off other bytes as a
// version, and end in time when the host is gone. Method: the host is a real process, stopped and
// killed at points of the reads; the lane is shared memory between processes, the same code over
// UCX as with an adapter.
#include "weightstore/remote_slot.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>

#include "core/transport/rma.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using transport::RmaDomain;
using transport::RmaLane;
using transport::RmaOptions;
using transport::RmaPeer;
using transport::RmaWindow;
using transport::RmaWindowKey;
using Clock = std::chrono::steady_clock;

constexpr size_t kSlotBytes = size_t{8} << 20;
constexpr milliseconds kLong{20'000};

uint64_t WordAt(uint64_t version, uint64_t index) {
  return (version + 1) * 0x9e3779b97f4a7c15 ^ index * 0xbf58476d1ce4e5b9;
}

void Fill(std::span<std::byte> slot, uint64_t version) {
  auto* words = reinterpret_cast<uint64_t*>(slot.data());
  for (size_t i = 0; i < slot.size() / 8; ++i) words[i] = WordAt(version, i);
}

// How many words are not `version`'s.
size_t Differing(std::span<const std::byte> bytes, uint64_t version, size_t first_word = 0) {
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  size_t differing = 0;
  for (size_t i = 0; i < bytes.size() / 8; ++i) {
    differing += words[i] != WordAt(version, first_word + i);
  }
  return differing;
}

RmaOptions TestLane() {
  RmaOptions options;
  options.lane = RmaLane::kShmTest;
  options.piece_bytes = size_t{1} << 20;
  return options;
}

// A process with one slot of version 0 under grant 1. To a byte written to it, it answers with one:
// 'n' the next version in the slot, its grant raised before the first byte changes; 'd' its window
// is given back.
class HostProcess {
 public:
  HostProcess() {
    EXPECT_EQ(pipe(to_host_), 0);
    EXPECT_EQ(pipe(from_host_), 0);
    pid_ = fork();
    if (pid_ == 0) Serve();
    close(to_host_[0]);
    close(from_host_[1]);
    address = ReceiveString();
    slot.bytes = ReceiveKey();
    slot.header = ReceiveKey();
    slot.slot_id = 7;
    slot.version = 0;
    slot.grant = 1;
  }
  ~HostProcess() {
    Kill();
    close(to_host_[1]);
    close(from_host_[0]);
  }
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void Continue() { kill(pid_, SIGCONT); }
  void Ask(char what) { ASSERT_EQ(write(to_host_[1], &what, 1), 1); }
  void Answered() {
    char answer = 0;
    ASSERT_EQ(read(from_host_[0], &answer, 1), 1);
  }

  std::string address;
  RemoteSlot slot;

 private:
  [[noreturn]] void Serve() {
    {
      auto domain = RmaDomain::Open(TestLane());
      if (!domain.ok()) _exit(2);
      auto bytes = (*domain)->Allocate(kSlotBytes);
      auto header = (*domain)->Allocate(kSlotHeaderBytes);
      if (!bytes.ok() || !header.ok()) _exit(3);
      SlotHeaderPage page(header->memory().data());
      SlotHeaderFields fields{.slot_id = 7, .version = 0, .grant = 1, .digest = {}};
      Fill(bytes->memory(), 0);
      page.Write(fields);
      SendString((*domain)->address());
      SendKey(bytes->key());
      SendKey(header->key());
      char what = 0;
      while (read(to_host_[0], &what, 1) == 1) {
        if (what == 'n') {
          ++fields.version;
          ++fields.grant;
          page.Write(fields);
          Fill(bytes->memory(), fields.version);
        }
        if (what == 'd') *bytes = RmaWindow();
        (void)!write(from_host_[1], &what, 1);
      }
    }
    _exit(0);
  }
  void SendString(const std::string& text) {
    const uint64_t size = text.size();
    (void)!write(from_host_[1], &size, sizeof(size));
    (void)!write(from_host_[1], text.data(), size);
  }
  void SendKey(const RmaWindowKey& key) {
    (void)!write(from_host_[1], &key.address, 8);
    (void)!write(from_host_[1], &key.bytes, 8);
    SendString(key.key);
  }
  uint64_t ReceiveNumber() {
    uint64_t number = 0;
    EXPECT_EQ(read(from_host_[0], &number, 8), 8) << "the host process did not start";
    return number;
  }
  std::string ReceiveString() {
    std::string text(ReceiveNumber(), '\0');
    EXPECT_EQ(read(from_host_[0], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return text;
  }
  RmaWindowKey ReceiveKey() {
    RmaWindowKey key;
    key.address = ReceiveNumber();
    key.bytes = ReceiveNumber();
    key.key = ReceiveString();
    return key;
  }

  int to_host_[2];
  int from_host_[2];
  pid_t pid_ = 0;
};

// This process as a reader.
struct Reader {
  explicit Reader(HostProcess& host) {
    auto opened = RmaDomain::Open(TestLane());
    EXPECT_TRUE(opened.ok()) << opened.status();
    domain = *std::move(opened);
    peer = *domain->Connect(host.address, kLong);
    slot = *domain->Allocate(kSlotBytes);
    header = *domain->Allocate(kSlotHeaderBytes);
    // Opens both windows, which must not happen first when the host is killed (rma.h).
    EXPECT_TRUE(Read(host).ok());
  }
  Status Read(const HostProcess& host, milliseconds deadline = kLong) {
    return ReadSlot(peer, host.slot, slot, header, deadline);
  }
  std::unique_ptr<RmaDomain> domain;  // ends last
  RmaPeer peer;
  RmaWindow slot;
  RmaWindow header;
};

TEST(RemoteSlotTest, WholeSlotsAndRandomRangesArriveAsTheyAre) {
  HostProcess host;
  Reader reader(host);
  ASSERT_TRUE(reader.Read(host).ok());
  EXPECT_EQ(Differing(reader.slot.memory(), 0), 0u);

  std::mt19937_64 random(20);
  for (int i = 0; i < 300; ++i) {
    const uint64_t from = random() % (kSlotBytes / 8);
    const uint64_t words = std::min(random() % (1 << (random() % 20)), kSlotBytes / 8 - from);
    const uint64_t to = random() % (kSlotBytes / 8 - words + 1);
    std::memset(reader.slot.memory().data() + to * 8, 0, words * 8);
    ASSERT_TRUE(
        reader.peer.Read(host.slot.bytes, from * 8, reader.slot, to * 8, words * 8, kLong).ok());
    ASSERT_EQ(Differing(reader.slot.memory().subspan(to * 8, words * 8), 0, from), 0u);
  }
}

TEST(RemoteSlotTest, AStoppedHostIsReadAllTheSame) {
  HostProcess host;
  Reader reader(host);
  host.Stop();
  const Status read = reader.Read(host);
  host.Continue();
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_EQ(Differing(reader.slot.memory(), 0), 0u);
}

TEST(RemoteSlotTest, AVersionThatIsTakenAwayIsNeverPassedOff) {
  HostProcess host;
  Reader reader(host);
  int whole = 0;
  int taken = 0;
  for (uint64_t version = 0; version < 40; ++version) {
    host.slot.version = version;
    host.slot.grant = version + 1;
    // From before the read to after it, a little later each time.
    host.Ask('n');
    std::this_thread::sleep_for(std::chrono::microseconds(10 * (version % 20)));
    const Status read = reader.Read(host);
    if (read.ok()) {
      ++whole;
      EXPECT_EQ(Differing(reader.slot.memory(), version), 0u) << version;
    } else {
      EXPECT_EQ(read.code(), StatusCode::kAborted) << read;
      ++taken;
    }
    host.Answered();
    // The stale lease gets nothing afterwards, and says so.
    EXPECT_EQ(reader.Read(host).code(), StatusCode::kAborted);
  }
  EXPECT_GT(taken, 0) << whole;
}

TEST(RemoteSlotTest, AKilledHostEndsReadsInTime) {
  for (int delay_us : {0, 200, 1000, 3000, 10'000}) {
    HostProcess host;
    Reader reader(host);
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      host.Kill();
    });
    const auto begin = Clock::now();
    Status last;
    // Memory of a killed host stays readable over this lane until its loss is noticed.
    while (last.ok() && Clock::now() - begin < milliseconds(10'000)) {
      last = reader.Read(host, milliseconds(1500));
      if (last.ok()) {
        EXPECT_EQ(Differing(reader.slot.memory(), 0), 0u);
      }
    }
    killer.join();
    EXPECT_EQ(last.code(), StatusCode::kUnavailable) << last;
    EXPECT_LT(Clock::now() - begin, milliseconds(5000));
    EXPECT_EQ(reader.Read(host).code(), StatusCode::kUnavailable);  // and says so at once
  }
}

TEST(RemoteSlotTest, NobodyAtAnAddressIsAnError) {
  std::string address;
  {
    HostProcess host;
    address = host.address;
  }
  auto domain = RmaDomain::Open(TestLane());
  ASSERT_TRUE(domain.ok());
  const auto begin = Clock::now();
  auto peer = (*domain)->Connect(address, milliseconds(500));
  EXPECT_FALSE(peer.ok());
  EXPECT_LT(Clock::now() - begin, milliseconds(4000));
}

TEST(RemoteSlotTest, DamagedAddressesAndKeysNeverReachTheLibrary) {
  HostProcess host;
  Reader reader(host);
  std::mt19937_64 random(21);
  for (int i = 0; i < 200; ++i) {
    std::string address = host.address;
    RmaWindowKey key = host.slot.bytes;
    for (std::string* text : {&address, &key.key}) {
      if (random() % 4 == 0) {
        text->resize(random() % text->size());
      } else {
        (*text)[random() % text->size()] ^= static_cast<char>(1 << (random() % 8));
      }
    }
    EXPECT_EQ(reader.domain->Connect(address, kLong).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(reader.peer.Read(key, 0, reader.slot, 0, 8, kLong).code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(reader.Read(host).ok());
}

TEST(RemoteSlotTest, RangesOutsideAWindowAreRefused) {
  HostProcess host;
  Reader reader(host);
  const auto read = [&](uint64_t from, uint64_t to, uint64_t bytes) {
    return reader.peer.Read(host.slot.bytes, from, reader.slot, to, bytes, kLong).code();
  };
  EXPECT_EQ(read(kSlotBytes, 0, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, kSlotBytes, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 0, kSlotBytes + 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(8, 0, ~uint64_t{0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(~uint64_t{0}, 0, 8), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(kSlotBytes, 0, 0), StatusCode::kOk);
  EXPECT_EQ(read(kSlotBytes - 1, kSlotBytes - 1, 1), StatusCode::kOk);
}

TEST(RemoteSlotTest, OnlyALaneOfTheNamedKindIsTaken) {
  // What the environment asks for does not bring an emulated lane in.
  setenv("UCX_TLS", "tcp,self", 1);
  auto rdma = RmaDomain::Open(RmaOptions{});
  HostProcess host;
  Reader reader(host);
  EXPECT_TRUE(reader.Read(host).ok());
  unsetenv("UCX_TLS");
  if (!rdma.ok()) {  // no adapter here
    EXPECT_EQ(rdma.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(MessageOf(rdma.status()).find("no lane rdma: UCX finds none of the transports rc,dc"),
              std::string::npos)
        << rdma.status();
  }
  std::vector<std::byte> own(4096);
  EXPECT_EQ(reader.domain->Register(own).status().code(), StatusCode::kFailedPrecondition);

  RmaOptions unknown;
  unknown.device = "no_such_adapter:1";
  EXPECT_NE(MessageOf(RmaDomain::Open(unknown).status()).find("no_such_adapter:1"),
            std::string::npos);
  RmaOptions zero;
  zero.pieces_in_flight = 0;
  EXPECT_EQ(RmaDomain::Open(zero).status().code(), StatusCode::kInvalidArgument);
}

TEST(RemoteSlotTest, AThousandWindowsAndConnectionsLeaveNothing) {
  HostProcess host;
  Reader reader(host);
  const auto descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  int before = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i == 10) before = descriptors();
    auto window = reader.domain->Allocate(size_t{64} << 10);
    auto peer = reader.domain->Connect(host.address, kLong);
    ASSERT_TRUE(window.ok() && peer.ok()) << i << window.status() << peer.status();
    ASSERT_TRUE(peer->Read(host.slot.bytes, 0, *window, 0, 4096, kLong).ok()) << i;
  }
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace titan::weightstore
