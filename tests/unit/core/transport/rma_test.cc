// SPDX-License-Identifier: Apache-2.0
//
// Goal: one-sided reads copy what the host offers without its help, and end in time when the host
// is gone. Method: the host is a real process, stopped and killed at points of the reads; the lane
// is shared memory between processes, the same code over UCX as with an adapter.
#include "core/transport/rma.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/transport/rma_probe.h"
#include "tests/support/rma_host.h"

namespace titan::transport {
namespace {

using std::chrono::milliseconds;
using testing::Differing;
using testing::kRmaSlotBytes;
using testing::RmaHost;
using testing::RmaTestLane;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLong{20'000};

// This process as a reader.
struct Reader {
  explicit Reader(RmaHost& host) {
    auto opened = RmaDomain::Open(RmaTestLane());
    EXPECT_TRUE(opened.ok()) << opened.status();
    domain = *std::move(opened);
    peer = *domain->Connect(host.address, kLong);
    slot = *domain->Land(std::span(*memory), memory);
    // Opens the window, which must not happen first when the host is killed (rma.h).
    EXPECT_TRUE(Read(host).ok());
  }
  Status Read(const RmaHost& host, milliseconds deadline = kLong) {
    return peer.Read(host.bytes, 0, slot, 0, kRmaSlotBytes, deadline);
  }
  // Of this process, as the memory that versions are pulled into.
  const std::shared_ptr<std::vector<std::byte>> memory =
      std::make_shared<std::vector<std::byte>>(kRmaSlotBytes);
  std::unique_ptr<RmaDomain> domain;  // ends last
  RmaPeer peer;
  RmaWindow slot;
};

TEST(RmaTest, WholeSlotsAndRandomRangesArriveAsTheyAre) {
  RmaHost host;
  Reader reader(host);
  ASSERT_TRUE(reader.Read(host).ok());
  EXPECT_EQ(Differing(reader.slot.memory(), 0), 0u);

  std::mt19937_64 random(20);
  for (int i = 0; i < 300; ++i) {
    const uint64_t from = random() % (kRmaSlotBytes / 8);
    const uint64_t words = std::min(random() % (1 << (random() % 20)), kRmaSlotBytes / 8 - from);
    const uint64_t to = random() % (kRmaSlotBytes / 8 - words + 1);
    std::memset(reader.slot.memory().data() + to * 8, 0, words * 8);
    ASSERT_TRUE(reader.peer.Read(host.bytes, from * 8, reader.slot, to * 8, words * 8, kLong).ok());
    ASSERT_EQ(Differing(reader.slot.memory().subspan(to * 8, words * 8), 0, from), 0u);
  }
}

TEST(RmaTest, AStoppedHostIsReadAllTheSame) {
  RmaHost host;
  Reader reader(host);
  host.Stop();
  const Status read = reader.Read(host);
  host.Continue();
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_EQ(Differing(reader.slot.memory(), 0), 0u);
}

TEST(RmaTest, AKilledHostEndsReadsInTime) {
  for (int delay_us : {0, 200, 1000, 3000, 10'000}) {
    RmaHost host;
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

TEST(RmaTest, NobodyAtAnAddressIsAnError) {
  std::string address;
  {
    RmaHost host;
    address = host.address;
  }
  auto domain = RmaDomain::Open(RmaTestLane());
  ASSERT_TRUE(domain.ok());
  const auto begin = Clock::now();
  auto peer = (*domain)->Connect(address, milliseconds(500));
  EXPECT_FALSE(peer.ok());
  EXPECT_LT(Clock::now() - begin, milliseconds(4000));
}

TEST(RmaTest, DamagedAddressesAndKeysNeverReachTheLibrary) {
  RmaHost host;
  Reader reader(host);
  std::mt19937_64 random(21);
  for (int i = 0; i < 200; ++i) {
    std::string address = host.address;
    RmaWindowKey key = host.bytes;
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

TEST(RmaTest, RangesOutsideAWindowAreRefused) {
  RmaHost host;
  Reader reader(host);
  const auto read = [&](uint64_t from, uint64_t to, uint64_t bytes) {
    return reader.peer.Read(host.bytes, from, reader.slot, to, bytes, kLong).code();
  };
  EXPECT_EQ(read(kRmaSlotBytes, 0, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, kRmaSlotBytes, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 0, kRmaSlotBytes + 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(8, 0, ~uint64_t{0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(~uint64_t{0}, 0, 8), StatusCode::kInvalidArgument);
  EXPECT_EQ(read(kRmaSlotBytes, 0, 0), StatusCode::kOk);
  EXPECT_EQ(read(kRmaSlotBytes - 1, kRmaSlotBytes - 1, 1), StatusCode::kOk);
}

TEST(RmaTest, OnlyALaneOfTheNamedKindIsTaken) {
  // What the environment asks for does not bring an emulated lane in.
  setenv("UCX_TLS", "tcp,self", 1);
  auto rdma = RmaDomain::Open(RmaOptions{});
  RmaHost host;
  Reader reader(host);
  EXPECT_TRUE(reader.Read(host).ok());
  unsetenv("UCX_TLS");
  if (!rdma.ok()) {  // no adapter here
    EXPECT_EQ(rdma.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(MessageOf(rdma.status()).find("no lane rdma: UCX finds none of the transports rc,dc"),
              std::string::npos)
        << rdma.status();
  }
  RmaOptions unknown;
  unknown.device = "no_such_adapter:1";
  EXPECT_NE(MessageOf(RmaDomain::Open(unknown).status()).find("no_such_adapter:1"),
            std::string::npos);
  RmaOptions zero;
  zero.pieces_in_flight = 0;
  EXPECT_EQ(RmaDomain::Open(zero).status().code(), StatusCode::kInvalidArgument);
}

TEST(RmaTest, AThousandWindowsAndConnectionsLeaveNothing) {
  RmaHost host;
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
    ASSERT_TRUE(peer->Read(host.bytes, 0, *window, 0, 4096, kLong).ok()) << i;
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(RmaTest, RegisteredBytesAreCountedAndMemoryOutlivesItsWindow) {
  auto domain = RmaDomain::Open(RmaTestLane());
  ASSERT_TRUE(domain.ok()) << domain.status();
  EXPECT_EQ((*domain)->registered_bytes(), 0u);
  auto memory = std::make_shared<std::vector<std::byte>>(5000);
  auto landing = (*domain)->Land(std::span(*memory), memory);
  auto own = (*domain)->Allocate(8192);
  ASSERT_TRUE(landing.ok() && own.ok()) << landing.status() << own.status();
  EXPECT_EQ((*domain)->registered_bytes(), 5000u + 8192u);
  EXPECT_GE(memory.use_count(), 2);
  *landing = RmaWindow();
  const auto begin = Clock::now();
  while ((*domain)->registered_bytes() != 8192 && Clock::now() - begin < kLong) {
    std::this_thread::yield();
  }
  while (memory.use_count() != 1 && Clock::now() - begin < kLong) std::this_thread::yield();
  EXPECT_EQ((*domain)->registered_bytes(), 8192u);
  EXPECT_EQ(memory.use_count(), 1);
}

// Its end and the next one's registering are seconds apart on a device, for GBs; here it is the
// clearing of the first one's pages that takes its time.
TEST(RmaTest, AWindowThatHasEndedDoesNotStandInTheWayOfTheNext) {
  constexpr size_t kBytes = size_t{16} << 20;
  RmaOptions options = RmaTestLane();
  options.lockable = {.bytes = kBytes + kBytes / 2};
  auto domain = RmaDomain::Open(options);
  ASSERT_TRUE(domain.ok()) << domain.status();
  for (int i = 0; i < 8; ++i) {
    const auto window = (*domain)->Allocate(kBytes);
    ASSERT_TRUE(window.ok()) << i << ": " << window.status();
    if (i > 0) continue;
    const auto beside = (*domain)->Allocate(kBytes);
    EXPECT_EQ(beside.status().code(), StatusCode::kResourceExhausted) << beside.status();
    for (const std::string& part : {"take " + std::to_string(2 * kBytes) + " bytes",
                                    "may lock " + std::to_string(options.lockable.bytes)}) {
      EXPECT_NE(MessageOf(beside.status()).find(part), std::string::npos) << beside.status();
    }
  }
}

TEST(RmaProbeTest, SocketsAndSharedMemoryAreNoRdmaDevices) {
  setenv("UCX_TLS", "self", 1);  // hides nothing from the probe
  const auto found = FindTransports();
  unsetenv("UCX_TLS");
  ASSERT_TRUE(found.ok()) << found.status();
  const auto has = [](const std::vector<std::string>& names, std::string_view start) {
    return std::ranges::any_of(names, [&](const auto& name) { return name.starts_with(start); });
  };
  for (const char* other : {"tcp/", "posix/"}) {
    EXPECT_TRUE(has(found->others, other)) << other;
    EXPECT_FALSE(has(found->rdma, other)) << other;
  }
  for (const std::string& name : found->rdma) {
    EXPECT_TRUE(name.starts_with("rc_") || name.starts_with("dc_")) << name;
  }
}

TEST(RmaProbeTest, MemoryThatMayNotBeLockedIsRefusedWithTheNumbers) {
  EXPECT_TRUE(CheckLockable(4096, "weights", {.bytes = 4096}).ok());
  EXPECT_TRUE(CheckLockable(4097, "weights", {.bytes = 4096, .unlimited = true}).ok());
  const Status refused = CheckLockable(4097, "weights", {.bytes = 4096});
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  for (const char* part : {"weights take 4097 bytes", "may lock 4096", "ulimit -l"}) {
    EXPECT_NE(MessageOf(refused).find(part), std::string::npos) << refused;
  }
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  EXPECT_EQ(ReadLockLimit().bytes, limit.rlim_cur);
}

}  // namespace
}  // namespace titan::transport
