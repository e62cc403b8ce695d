// SPDX-License-Identifier: Apache-2.0
//
// Goal: a version that is pulled is the lease's, whole and verified, in memory of its own, or there
// is an error that says what to do; what was pulled before is never touched. Method: slots without
// a store behind a TcpServer, a proxy that turns bits, real processes that are killed and stopped.
#include "weightstore/transport/puller.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/sanitized.h"
#include "tests/support/served_slots.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/transport/tcp_server.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::FlippingProxy;
using testing::PortOf;
using testing::ServedSlots;
using titan::testing::ChildProcess;
using weightstore::testing::Fill;
using weightstore::testing::NumberIn;
using weightstore::testing::SmallManifest;

constexpr int64_t kPanels = 500;  // 2 MiB and some tiles' rest
// A dead or silent source is given up by then.
constexpr milliseconds kSoon{titan::testing::Rounds(2'000, 20'000)};

SteadyTime In(milliseconds time) { return steady_clock::now() + time; }

// Adds a slot whose every 8 bytes hold the version's number; verified and hashed, as a daemon does.
uint64_t AddVersion(ServedSlots& slots, const Manifest& manifest, uint64_t version) {
  auto memory = SlotMemory::Create(version + 1, manifest.slot_bytes, SlotMemory::Writer::kDaemon);
  EXPECT_TRUE(memory.ok()) << memory.status();
  Fill((*memory)->writable_bytes(), version);
  const Hash128 digest = WeightsDigest(manifest, (*memory)->bytes(), 2);
  const uint64_t lease = slots.AddMemory(*std::move(memory), version, digest);
  slots.HashTiles(lease);
  return lease;
}

RemoteLease LeaseOf(const PullGrant& grant, const Manifest& manifest, std::string address) {
  RemoteLease lease;
  lease.lease = grant.lease;
  lease.lease.run_id = "run";
  lease.lease.manifest = std::make_shared<const Manifest>(manifest);
  lease.epoch = grant.epoch;
  lease.token = grant.token;
  lease.ttl = seconds(20);
  lease.address = std::move(address);
  return lease;
}

class PullerTest : public ::testing::Test {
 protected:
  PullerTest() {
    auto server = TcpServer::Start({}, slots_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    PullerOptions options;
    options.report = [this](const PullReport& report) { reports_.push_back(report); };
    options.memory = [this](double num_bytes) { memory_ += static_cast<int64_t>(num_bytes); };
    auto puller = Puller::Create(std::move(options));
    EXPECT_TRUE(puller.ok()) << puller.status();
    puller_ = *std::move(puller);
  }
  RemoteLease Add(uint64_t version) {
    return LeaseOf(slots_.GrantOf(AddVersion(slots_, manifest_, version)), manifest_,
                   server_->address());
  }
  StatusOr<std::shared_ptr<const MappedMemory>> Pull(const RemoteLease& lease) {
    return puller_->Pull(lease, In(lease.ttl));
  }
  int64_t slot_bytes() const { return static_cast<int64_t>(manifest_.slot_bytes); }

  const Manifest manifest_ = SmallManifest(kPanels);
  ServedSlots slots_;
  std::unique_ptr<TcpServer> server_;
  std::unique_ptr<Puller> puller_;
  std::vector<PullReport> reports_;
  int64_t memory_ = 0;
};

uint64_t NumberOf(const std::shared_ptr<const MappedMemory>& memory) {
  return NumberIn({memory->data(), memory->size()});
}

// Can this process write there? Asked of the kernel, which refuses instead of ending the test.
bool IsWritable(std::byte* at) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  const bool written = read(ends[0], at, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return written;
}

TEST_F(PullerTest, PullsVerifiesCountsAndMakesReadOnly) {
  const RemoteLease lease = Add(7);
  const auto memory = Pull(lease);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->size(), manifest_.slot_bytes);
  EXPECT_EQ(NumberOf(*memory), 7u);
  EXPECT_FALSE(IsWritable((*memory)->data()));
  EXPECT_FALSE(IsWritable((*memory)->data() + manifest_.slot_bytes - 1));
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].lane, Lane::kTcp);
  EXPECT_EQ(reports_[0].num_bytes, manifest_.slot_bytes);
  EXPECT_EQ(reports_[0].corrupt, 0u);
  EXPECT_GT(reports_[0].open_seconds, 0);
  EXPECT_GT(reports_[0].transfer_seconds, 0);
  EXPECT_GT(reports_[0].verify_seconds, 0);
  EXPECT_EQ(memory_, slot_bytes());
}

TEST_F(PullerTest, EachVersionHasItsOwnMemoryAndTheNextOneGetsWhatWasGivenBack) {
  const RemoteLease leases[] = {Add(0), Add(1), Add(2), Add(3)};
  auto zero = *Pull(leases[0]);
  auto one = *Pull(leases[1]);
  EXPECT_EQ(memory_, 2 * slot_bytes());
  const std::byte* const first = zero->data();
  zero.reset();
  const auto two = *Pull(leases[2]);
  EXPECT_EQ(two->data(), first);
  EXPECT_EQ(memory_, 2 * slot_bytes());
  EXPECT_EQ(NumberOf(one), 1u);
  EXPECT_EQ(NumberOf(two), 2u);
  // A failed pull holds nothing and leaves the others alone.
  RemoteLease broken = leases[3];
  broken.token.low ^= 1;
  EXPECT_EQ(Pull(broken).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(NumberOf(one), 1u);
  EXPECT_EQ(NumberOf(two), 2u);
  EXPECT_EQ(memory_, 3 * slot_bytes());  // with one spare
  one.reset();
  EXPECT_EQ(memory_, 2 * slot_bytes());  // there is one spare, not two
  puller_.reset();
  EXPECT_EQ(memory_, slot_bytes());
  EXPECT_EQ(NumberOf(two), 2u);  // outlives the puller
}

TEST_F(PullerTest, ABitThatTurnsOnTheWayIsAskedForAgainAndCounted) {
  const RemoteLease lease = Add(9);
  FlippingProxy proxy(PortOf(server_->address()), {1'500'000}, {});
  RemoteLease by_proxy = lease;
  by_proxy.address = proxy.address();
  const auto memory = Pull(by_proxy);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(NumberOf(*memory), 9u);
  EXPECT_EQ(reports_.at(0).corrupt, 1u);
}

TEST_F(PullerTest, ASlotThatHoldsOtherBytesIsRefusedWhateverItsHashes) {
  const RemoteLease lease = Add(4);
  slots_.bytes(1)[77] ^= std::byte{1};
  // Its tile's hash is of before: found in transit.
  Status refused = Pull(lease).status();
  EXPECT_EQ(ReasonOf(refused), kDigestMismatch) << refused;
  EXPECT_GE(reports_.at(0).corrupt, 2u);
  // Hashed with the bit in it: found by the weights digest, after a second try.
  slots_.HashTiles(1);
  refused = Pull(lease).status();
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss) << refused;
  EXPECT_EQ(ReasonOf(refused), kDigestMismatch) << refused;
  EXPECT_EQ(reports_.at(1).corrupt, 2u);
  EXPECT_EQ(reports_.at(1).num_bytes, 2 * manifest_.slot_bytes);
  EXPECT_EQ(memory_, slot_bytes());  // the spare
}

TEST_F(PullerTest, WhatCannotBePulledIsRefusedByName) {
  const RemoteLease lease = Add(4);
  RemoteLease wrong = lease;
  wrong.lane = Lane::kRdma;
  EXPECT_EQ(Pull(wrong).status().code(), StatusCode::kInvalidArgument);
  wrong = lease;
  wrong.address = "store:7301";
  EXPECT_EQ(Pull(wrong).status().code(), StatusCode::kInvalidArgument);
  wrong = lease;
  wrong.lease.manifest = std::make_shared<const Manifest>(SmallManifest(kPanels + 1));
  EXPECT_EQ(Pull(wrong).status().code(), StatusCode::kDataLoss);
  wrong = lease;
  wrong.lease.manifest = std::make_shared<const Manifest>(SmallManifest(int64_t{1} << 30));
  const Status large = Pull(wrong).status();
  EXPECT_EQ(large.code(), StatusCode::kResourceExhausted) << large;
  EXPECT_NE(MessageOf(large).find("are free"), std::string::npos) << large;
  wrong = lease;
  wrong.ttl = milliseconds(0);
  EXPECT_EQ(ReasonOf(Pull(wrong).status()), kLeaseExpired);
  slots_.RaiseGrants();
  EXPECT_EQ(ReasonOf(Pull(lease).status()), kStaleHandle);
  slots_.EndLease();
  EXPECT_EQ(ReasonOf(Pull(lease).status()), kLeaseExpired);
}

TEST_F(PullerTest, CancelEndsAPullBetweenTwoParts) {
  const Manifest large = SmallManifest(20'000);  // 80 MiB: two parts
  const uint64_t slot = AddVersion(slots_, large, 3);
  std::atomic<uint64_t> looks{0};
  slots_.before_second_look = [&] {
    if (++looks == 8) puller_->Cancel();
  };
  const RemoteLease lease = LeaseOf(slots_.GrantOf(slot), large, server_->address());
  EXPECT_EQ(Pull(lease).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(reports_.at(0).num_bytes, uint64_t{64} << 20);
}

TEST_F(PullerTest, AnAddressWhereNobodyListensIsSaidWithTheFix) {
  RemoteLease lease = Add(4);
  server_.reset();
  const auto start = steady_clock::now();
  const Status gone = Pull(lease).status();
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable) << gone;
  EXPECT_NE(MessageOf(gone).find("data_plane_address"), std::string::npos) << gone;
  EXPECT_LT(steady_clock::now() - start, kSoon);
}

// Sources that are killed or stopped while a version comes: the reader says so within 2 s, and what
// it holds is whole. The children are forked first, before this process has threads.
TEST(PullerProcessTest, AKilledOrStoppedSourceFailsThePullInTimeAndTheOldVersionServes) {
  const Manifest manifest = SmallManifest(6'000);  // 24 MiB
  const auto serve = [&manifest](ChildProcess& parent) {
    ServedSlots slots;
    for (uint64_t version = 0; version < 2; ++version) AddVersion(slots, manifest, version);
    auto server = TcpServer::Start({}, slots);
    if (!server.ok()) _exit(2);
    parent.Send(PortOf((*server)->address()));
    for (;;) pause();
  };
  std::vector<std::unique_ptr<ChildProcess>> sources;
  const int rounds = titan::testing::Rounds(4, 2);
  for (int i = 0; i < rounds; ++i) sources.push_back(std::make_unique<ChildProcess>(serve));

  ServedSlots same;  // for the leases: the children's are the same
  for (uint64_t version = 0; version < 2; ++version) AddVersion(same, manifest, version);
  std::vector<PullReport> reports;
  PullerOptions options;
  options.report = [&](const PullReport& report) { reports.push_back(report); };
  options.tcp.piece_bytes = 64 << 10;
  auto puller = Puller::Create(std::move(options));
  ASSERT_TRUE(puller.ok()) << puller.status();
  std::mt19937_64 random(11);
  for (int round = 0; round < rounds; ++round) {
    ChildProcess& source = *sources[static_cast<size_t>(round)];
    const std::string address = "127.0.0.1:" + std::to_string(source.Receive());
    const auto held = (*puller)->Pull(LeaseOf(same.GrantOf(1), manifest, address), In(seconds(20)));
    ASSERT_TRUE(held.ok()) << held.status();
    const auto delay = std::chrono::microseconds(random() % 8'000);
    steady_clock::time_point ended_it;
    std::jthread killer([&] {
      std::this_thread::sleep_for(delay);
      ended_it = steady_clock::now();
      if (round % 2 == 0) source.Kill();
      if (round % 2 == 1) source.Signal(SIGSTOP);
    });
    Status status = OkStatus();
    do {
      const auto next =
          (*puller)->Pull(LeaseOf(same.GrantOf(2), manifest, address), In(seconds(20)));
      status = next.status();
      if (next.ok()) {
        EXPECT_EQ(NumberOf(*next), 1u);
      }
    } while (status.ok());
    const auto ended = steady_clock::now();
    killer.join();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_LT(ended - ended_it, kSoon);
    EXPECT_EQ(NumberOf(*held), 0u);
  }
}

}  // namespace
}  // namespace titan::weightstore::lanes
