// SPDX-License-Identifier: Apache-2.0
//
// Goal: what the store promises about processes that die or pause. Method: real child processes
// that map slots over the socket and are killed with SIGKILL or stopped; they talk to the test by
// pipes. The children use the client library alone, with leases that the test took for them.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/sanitized.h"
#include "tests/support/weightstore_host.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using testing::Fill;
using testing::Host;
using testing::NumberIn;
using testing::Publish;
using testing::SmallManifest;
using titan::testing::ChildProcess;
using titan::testing::Eventually;

// The numbers of a lease, by pipe.
void SendLease(ChildProcess& child, const Lease& lease) {
  for (const uint64_t value :
       {lease.lease_id, lease.grant, lease.version, lease.digest.low, lease.digest.high}) {
    child.Send(value);
  }
}
Lease ReceiveLease(ChildProcess& parent) {
  Lease lease;
  lease.lease_id = parent.Receive();
  lease.grant = parent.Receive();
  lease.version = parent.Receive();
  lease.digest.low = parent.Receive();
  lease.digest.high = parent.Receive();
  lease.manifest = std::make_shared<const Manifest>(SmallManifest());
  return lease;
}

// Maps the lease that it is sent, answers with what it reads, then again whenever asked; ~0 - 1
// when the header changed.
void ReadForEver(ChildProcess& parent, const std::string& socket_path) {
  auto slot = HeldVersion::Map(socket_path, ReceiveLease(parent));
  if (!slot.ok()) _exit(2);
  for (;;) {
    const uint64_t number = NumberIn(slot->bytes());
    parent.Send(slot->HeaderUnchanged() ? number : ~uint64_t{1});
    parent.Receive();
  }
}

TEST(StoreProcessTest, AKilledReaderLosesItsLeaseAndTheRingMovesOn) {
  Host host;
  auto publisher = host.Register();
  for (uint64_t v = 0; v < 2; ++v) Publish(*publisher, v);
  ChildProcess reader([&](ChildProcess& parent) { ReadForEver(parent, host.socket_path()); });
  ChildProcess other([&](ChildProcess& parent) { ReadForEver(parent, host.socket_path()); });
  SendLease(reader, *host.leader().AcquireLease("generator-0", "run", 0, false));
  SendLease(other, *host.leader().AcquireLease("generator-1", "run", 1, false));
  EXPECT_EQ(reader.Receive(), 0u);
  EXPECT_EQ(other.Receive(), 1u);
  Publish(*publisher, 2);
  host.now_ms = 1'000'000;  // mapped leases have no ttl
  EXPECT_EQ(publisher->Begin(3, milliseconds(20)).status().code(), StatusCode::kResourceExhausted);
  reader.Kill();
  EXPECT_TRUE(Eventually([&] { return host.leader().Stats().num_leases == 1; }));
  Publish(*publisher, 3);
  other.Send(0);
  EXPECT_EQ(other.Receive(), 1u);
}

TEST(StoreProcessTest, ReadersNeverSeeATornOrForeignVersionWhileTheWriterRuns) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0);
  struct Loop {
    static void Run(ChildProcess& parent, const std::string& path) {
      for (;;) {
        auto slot = HeldVersion::Map(path, ReceiveLease(parent));
        if (!slot.ok()) _exit(2);
        // Many reads while the writer goes on.
        for (int i = 0; i < 30; ++i) {
          const uint64_t number = NumberIn(slot->bytes());
          if (slot->HeaderUnchanged() && number != slot->version()) _exit(4);
        }
        const uint64_t version = slot->version();
        slot->Drop();
        parent.Send(version);
      }
    }
  };
  ChildProcess first([&](ChildProcess& parent) { Loop::Run(parent, host.socket_path()); });
  ChildProcess second([&](ChildProcess& parent) { Loop::Run(parent, host.socket_path()); });
  std::atomic<uint64_t> newest{0};
  std::atomic<uint64_t> reads{0};
  std::atomic<bool> failed{false};
  constexpr uint64_t kVersions = titan::testing::Rounds<uint64_t>(2000, 200);
  const auto feed = [&](ChildProcess& child, const std::string& name) {
    while (newest < kVersions && !failed) {
      const auto lease = host.leader().AcquireLease(name, "run", newest, false);
      if (!lease.ok()) continue;  // retired meanwhile
      SendLease(child, *lease);
      if (child.Receive() != lease->version) failed = true;
      ++reads;
    }
  };
  std::thread a([&] { feed(first, "a"); }), b([&] { feed(second, "b"); });
  for (uint64_t v = 1; v <= kVersions && !failed; ++v) {
    Publish(*publisher, v);
    newest = v;
  }
  a.join();
  b.join();
  EXPECT_FALSE(failed);
  EXPECT_GT(reads, kVersions / 100);
}

TEST(StoreProcessTest, AKilledWriterLeavesItsVersionAbortedAndThePreviousOneServed) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0);
  publisher.reset();
  EXPECT_TRUE(Eventually([&] { return host.leader().Stats().num_slots == 2; }));
  const auto registration = host.leader().RegisterTrainer("r", "run", SmallManifest(), 0, 1, "");
  ASSERT_TRUE(registration.ok());
  const auto begun = host.leader().BeginVersion("run", registration->epoch, 1, milliseconds(0));
  ASSERT_TRUE(begun.ok());
  ChildProcess writer([&](ChildProcess& parent) {
    const uint64_t epoch = parent.Receive(), grant = parent.Receive();
    auto connection = ConnectUnix(host.socket_path(), kSocketTimeout);
    auto answer = Call(connection->get(),
                       {.kind = SocketRequestKind::kMapForWriting, .id = epoch, .grant = grant});
    if (!answer.ok()) _exit(2);
    auto map = MappedMemory::Map(answer->fds[0].get(), answer->slot_bytes, true);
    if (!Call(connection->get(),
              {.kind = SocketRequestKind::kWriterHasMapped, .id = answer->slot_id, .grant = grant})
             .ok())
      _exit(2);
    std::memset(map->data(), 1, 100);  // half written
    parent.Send(1);
    parent.Receive();
  });
  writer.Send(registration->epoch);
  writer.Send(begun->grant);
  ASSERT_EQ(writer.Receive(), 1u);
  writer.Kill();
  EXPECT_TRUE(Eventually(
      [&] { return host.leader().ListVersions("run")->at(1).state == VersionState::kAborted; }));
  auto slot = host.Reader().Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 0u);
  EXPECT_EQ(
      host.leader().BeginVersion("run", registration->epoch, 1, milliseconds(0)).status().code(),
      StatusCode::kAborted);
  auto next = host.Register();
  Publish(*next, 1);
}

TEST(StoreProcessTest, APausedAndFencedWriterChangesNoByteOfAServedSlot) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0);
  publisher.reset();
  const auto registration = host.leader().RegisterTrainer("r", "run", SmallManifest(), 0, 1, "");
  const auto begun = host.leader().BeginVersion("run", registration->epoch, 1, milliseconds(0));
  ChildProcess writer([&](ChildProcess& parent) {
    const uint64_t epoch = parent.Receive(), grant = parent.Receive();
    auto connection = ConnectUnix(host.socket_path(), kSocketTimeout);
    auto answer = Call(connection->get(),
                       {.kind = SocketRequestKind::kMapForWriting, .id = epoch, .grant = grant});
    if (!answer.ok()) _exit(2);
    auto map = MappedMemory::Map(answer->fds[0].get(), answer->slot_bytes, true);
    if (!Call(connection->get(),
              {.kind = SocketRequestKind::kWriterHasMapped, .id = answer->slot_id, .grant = grant})
             .ok())
      _exit(2);
    parent.Send(1);
    // Paused here; on waking it writes all it can.
    for (uint64_t i = 0;; ++i) {
      Fill({map->data(), map->size()}, 0xdead);
      if (i == 0) {
        raise(SIGSTOP);
      } else if (i == 1) {
        parent.Send(2);
      }
    }
  });
  writer.Send(registration->epoch);
  writer.Send(begun->grant);
  ASSERT_EQ(writer.Receive(), 1u);
  std::this_thread::sleep_for(milliseconds(5));
  auto next = host.Register();  // fences it
  Publish(*next, 1);
  Publish(*next, 2);
  std::vector<HeldVersion> slots;
  for (uint64_t v = 0; v < 3; ++v) {
    auto slot = host.Reader().Acquire("run", v, false);
    if (slot.ok()) slots.push_back(*std::move(slot));
  }
  ASSERT_GE(slots.size(), 2u);
  writer.Signal(SIGCONT);
  ASSERT_EQ(writer.Receive(), 2u);
  for (const HeldVersion& slot : slots) {
    EXPECT_EQ(NumberIn(slot.bytes()), slot.version());
    EXPECT_EQ(WeightsDigest(slot.manifest(), slot.bytes(), 1), slot.lease().digest);
  }
  EXPECT_EQ(host.leader().PutDone("run", registration->epoch, 1, begun->grant, {}).code(),
            StatusCode::kAborted);
  EXPECT_EQ(host.leader().CommitVersion("run", registration->epoch, 1, {}, "", 0).status().code(),
            StatusCode::kAborted);
}

TEST(StoreProcessTest, APausedReaderThatWasFencedFindsOutOnWaking) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0);
  ChildProcess reader([&](ChildProcess& parent) { ReadForEver(parent, host.socket_path()); });
  SendLease(reader, *host.leader().AcquireLease("generator-0", "run", 0, false));
  ASSERT_EQ(reader.Receive(), 0u);
  reader.Signal(SIGSTOP);
  ASSERT_TRUE(host.leader().FenceReaders("run", 0).ok());
  for (uint64_t v = 1; v < 5; ++v) Publish(*publisher, v);  // its slot is written anew
  reader.Send(0);
  reader.Signal(SIGCONT);
  EXPECT_EQ(reader.Receive(), ~uint64_t{1});
}

TEST(StoreProcessTest, APausedReaderIsFencedAtTheDeadlineAndItsStepDiscardedOnWaking) {
  Host host;
  auto publisher = host.Register();
  for (uint64_t v = 0; v < 2; ++v) Publish(*publisher, v);
  ChildProcess paused([&](ChildProcess& parent) { ReadForEver(parent, host.socket_path()); });
  ChildProcess other([&](ChildProcess& parent) { ReadForEver(parent, host.socket_path()); });
  SendLease(paused, *host.leader().AcquireLease("generator-0", "run", 0, false));
  SendLease(other, *host.leader().AcquireLease("generator-1", "run", 1, false));
  ASSERT_EQ(paused.Receive(), 0u);
  ASSERT_EQ(other.Receive(), 1u);
  paused.Signal(SIGSTOP);
  Publish(*publisher, 2);
  // The ring wants a slot: holders are asked to release, and watchers hear of it.
  EXPECT_EQ(publisher->Begin(3, milliseconds(20)).status().code(), StatusCode::kResourceExhausted);
  const auto asked = host.leader().ChangesSince("run", 0, 0, 9);
  ASSERT_TRUE(asked.ok()) << asked.status();
  int retired = 0;
  for (const VersionInfo& version : asked->versions) {
    if (version.state != VersionState::kRetired) continue;
    EXPECT_EQ(version.holders.size(), 1u);
    ++retired;
  }
  EXPECT_EQ(retired, 2);
  host.now_ms = host.now_ms + Host::kMapDeadlineMs - 1;
  EXPECT_EQ(publisher->Begin(3, milliseconds(20)).status().code(), StatusCode::kResourceExhausted);
  host.now_ms = host.now_ms + 1;
  Publish(*publisher, 3);
  other.Send(0);
  EXPECT_EQ(other.Receive(), 1u);  // its version was not touched
  paused.Send(0);
  paused.Signal(SIGCONT);
  EXPECT_EQ(paused.Receive(), ~uint64_t{1});
}

TEST(StoreProcessTest, ReadersKeepTheirMemoryWhenTheStoreDies) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0, 11);
  ChildProcess reader([&](ChildProcess& parent) { ReadForEver(parent, host.socket_path()); });
  SendLease(reader, *host.leader().AcquireLease("generator-0", "run", 0, false));
  ASSERT_EQ(reader.Receive(), 11u);
  host.Stop();
  reader.Send(0);
  EXPECT_EQ(reader.Receive(), 11u);
  host.Start();
  EXPECT_EQ(host.leader().ListVersions("run")->at(0).state, VersionState::kLost);
}

}  // namespace
}  // namespace titan::weightstore
