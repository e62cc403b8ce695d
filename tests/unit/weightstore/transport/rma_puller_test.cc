// SPDX-License-Identifier: Apache-2.0
//
// Goal: whole versions by one-sided reads: the same bits as by the other lanes, registered once,
// TCP only where it is allowed, and what is required and not there is said. Method: slots without a
// store whose memory is in windows (shm-test) behind a TcpServer that tells where they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "core/transport/rma_probe.h"
#include "tests/support/served_slots.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/transport/puller.h"
#include "weightstore/transport/rma_lane.h"
#include "weightstore/transport/tcp_server.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::ServedSlots;
using titan::transport::RmaDomain;
using weightstore::testing::Fill;
using weightstore::testing::NumberIn;
using weightstore::testing::SmallManifest;

std::shared_ptr<RmaDomain> TestDomain() {
  auto lane = OpenRmaLane({.required = true, .shm_test = true, .device = "", .registered = {}});
  EXPECT_TRUE(lane.ok()) << lane.status();
  return lane.ok() ? lane->domain : nullptr;
}

class RmaPullerTest : public ::testing::Test {
 protected:
  RmaPullerTest() { Serve({}); }

  void Serve(const TcpServerOptions& options) {
    auto server = TcpServer::Start(options, slots_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<Puller> MakePuller(std::shared_ptr<RmaDomain> rma, bool require_rdma = false) {
    PullerOptions options;
    options.rma = std::move(rma);
    options.require_rdma = require_rdma;
    options.report = [this](const PullReport& report) { reports_.push_back(report); };
    auto puller = Puller::Create(std::move(options));
    EXPECT_TRUE(puller.ok()) << puller.status();
    return *std::move(puller);
  }
  // A version that holds its number, with windows if `rma`.
  RemoteLease Add(uint64_t version, const std::shared_ptr<RmaDomain>& rma) {
    return Add(version, rma, manifest_);
  }
  RemoteLease Add(uint64_t version, const std::shared_ptr<RmaDomain>& rma,
                  const Manifest& manifest) {
    auto memory =
        SlotMemory::Create(version + 1, manifest.slot_bytes, SlotMemory::Writer::kDaemon, {}, rma);
    EXPECT_TRUE(memory.ok()) << memory.status();
    Fill((*memory)->writable_bytes(), version);
    const Hash128 digest = WeightsDigest(manifest, (*memory)->bytes(), 2);
    header_ = memory->get();
    const uint64_t lease = slots_.AddMemory(*std::move(memory), version, digest);
    const PullGrant grant = slots_.GrantOf(lease);
    fields_ = {version + 1, version, grant.lease.grant, digest};
    header_->WriteHeader(fields_);
    RemoteLease remote;
    remote.lease = grant.lease;
    remote.lease.run_id = "run";
    remote.lease.manifest = std::make_shared<const Manifest>(manifest);
    remote.epoch = grant.epoch;
    remote.token = grant.token;
    remote.ttl = seconds(20);
    remote.lane = Lane::kShmTest;
    remote.address = server_->address();
    return remote;
  }
  static StatusOr<std::shared_ptr<const MappedMemory>> Pull(Puller& puller,
                                                            const RemoteLease& lease) {
    return puller.Pull(lease, steady_clock::now() + lease.ttl);
  }

  const Manifest manifest_ = SmallManifest(500);  // 2 MiB and something
  const std::shared_ptr<RmaDomain> host_ = TestDomain();
  ServedSlots slots_;
  std::unique_ptr<TcpServer> server_;
  std::vector<PullReport> reports_;
  SlotMemory* header_ = nullptr;  // of the last one that was added, with what is in it
  SlotHeaderFields fields_;
};

uint64_t NumberOf(const std::shared_ptr<const MappedMemory>& memory) {
  return NumberIn({memory->data(), memory->size()});
}

TEST_F(RmaPullerTest, VersionsComeByOneSidedReadsIntoMemoryThatIsRegisteredOnce) {
  const auto domain = TestDomain();
  auto puller = MakePuller(domain);
  EXPECT_EQ(puller->lanes(), (std::vector<Lane>{Lane::kShmTest, Lane::kTcp}));
  for (uint64_t version = 0; version < 5; ++version) {
    const auto memory = Pull(*puller, Add(version, host_));
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(NumberOf(*memory), version);
    EXPECT_EQ(reports_.back().lane, Lane::kShmTest);
    EXPECT_EQ(reports_.back().num_bytes, manifest_.slot_bytes);
    EXPECT_EQ(reports_.back().corrupt, 0u);
  }
  EXPECT_EQ(reports_.size(), 5u);
  // The TCP server sent where windows are, and no weights.
  EXPECT_LT(server_->Stats().sent_bytes, 6 * kRmaSourceBytes);
  // One buffer, which is the spare now; a header page more while a connection ends.
  const auto begin = steady_clock::now();
  while (domain->registered_bytes() != manifest_.slot_bytes &&
         steady_clock::now() - begin < seconds(10)) {
    std::this_thread::yield();
  }
  EXPECT_EQ(domain->registered_bytes(), manifest_.slot_bytes);
  const auto held = Pull(*puller, Add(5, host_));
  ASSERT_TRUE(held.ok());
  puller.reset();
  EXPECT_EQ(NumberOf(*held), 5u);  // outlives the puller, with its domain
}

// A version of another size gets other memory: that of the one before, which is being given back,
// does not stand in its way.
TEST_F(RmaPullerTest, WhatMayNotBeLockedComesOverTcpAndNothingElse) {
  const Manifest larger = SmallManifest(600), too_large = SmallManifest(1'500);
  // A header page is read into a window, too; some while connections end.
  const auto lane = OpenRmaLane({.shm_test = true,
                                 .device = "",
                                 .shm_test_lock_bytes = larger.slot_bytes + 16 * kSlotHeaderBytes,
                                 .registered = {}});
  ASSERT_TRUE(lane.ok()) << lane.status();
  const auto puller = MakePuller(lane->domain);
  for (uint64_t version = 0; version < 10; ++version) {
    const auto memory = Pull(*puller, Add(version, host_, version % 2 == 0 ? manifest_ : larger));
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(NumberOf(*memory), version);
    EXPECT_EQ(reports_.back().lane, Lane::kShmTest) << version;
  }
  ASSERT_TRUE(Pull(*puller, Add(10, host_, too_large)).ok());
  EXPECT_EQ(reports_.back().lane, Lane::kTcp);
  ASSERT_TRUE(Pull(*puller, Add(11, host_)).ok());
  EXPECT_EQ(reports_.back().lane, Lane::kShmTest);
  // Without TCP it is said, with the numbers.
  const Status refused =
      Pull(*MakePuller(lane->domain, /*require_rdma=*/true), Add(12, host_, too_large)).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(MessageOf(refused).find("this process may lock " +
                                    std::to_string(larger.slot_bytes + 16 * kSlotHeaderBytes)),
            std::string::npos)
      << refused;
}

TEST_F(RmaPullerTest, WhatIsNotTheLeasesIsNeverTaken) {
  auto puller = MakePuller(TestDomain(), /*require_rdma=*/true);
  const RemoteLease lease = Add(3, host_);
  // A bit that turned in the slot: nothing is hashed on the way, the digest finds it.
  slots_.bytes(1)[77] ^= std::byte{1};
  Status status = Pull(*puller, lease).status();
  EXPECT_EQ(ReasonOf(status), kDigestMismatch) << status;
  EXPECT_EQ(reports_.back().corrupt, 2u);
  slots_.bytes(1)[77] ^= std::byte{1};
  EXPECT_TRUE(Pull(*puller, lease).ok());
  // The slot was taken from its readers and who is asked for windows does not know yet.
  ++fields_.grant;
  header_->WriteHeader(fields_);
  EXPECT_EQ(ReasonOf(Pull(*puller, lease).status()), kStaleHandle);
  --fields_.grant;
  ++fields_.version;
  header_->WriteHeader(fields_);
  EXPECT_EQ(Pull(*puller, lease).status().code(), StatusCode::kDataLoss);
  // It knows: windows are told to nobody without a lease.
  RemoteLease forged = lease;
  forged.token.low ^= 1;
  EXPECT_EQ(Pull(*puller, forged).status().code(), StatusCode::kFailedPrecondition);
  slots_.RaiseGrants();
  EXPECT_EQ(ReasonOf(Pull(*puller, lease).status()), kStaleHandle);
  slots_.EndLease();
  EXPECT_EQ(ReasonOf(Pull(*puller, lease).status()), kLeaseExpired);
}

TEST_F(RmaPullerTest, TcpTakesOverWhereItMayAndNowhereElse) {
  const auto domain = TestDomain();
  auto any = MakePuller(domain);
  auto strict = MakePuller(domain, /*require_rdma=*/true);
  EXPECT_EQ(strict->lanes(), std::vector<Lane>{Lane::kShmTest});
  const RemoteLease without = Add(1, nullptr);
  const auto memory = Pull(*any, without);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(NumberOf(*memory), 1u);
  ASSERT_EQ(reports_.size(), 2u);
  EXPECT_EQ(reports_[0].lane, Lane::kShmTest);
  EXPECT_EQ(reports_[1].lane, Lane::kTcp);
  const Status refused = Pull(*strict, without).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
  EXPECT_NE(MessageOf(refused).find("no windows"), std::string::npos) << refused;
  // That was one slot of the host, others have windows.
  const RemoteLease with = Add(2, host_);
  ASSERT_TRUE(Pull(*any, with).ok());
  EXPECT_EQ(reports_.back().lane, Lane::kShmTest);
  // A source that is gone altogether and comes back says nothing about the lane.
  server_.reset();
  EXPECT_EQ(Pull(*any, with).status().code(), StatusCode::kUnavailable);
  Serve({.listen = with.address});
  ASSERT_TRUE(Pull(*any, with).ok());
  EXPECT_EQ(reports_.back().lane, Lane::kShmTest);
  // Windows that are told and cannot be read: for a while it does not try again.
  const StatusOr<ReadableSlot> slot =
      slots_.OpenForRead({with.lease.lease_id, with.epoch, with.lease.grant, with.token});
  ASSERT_TRUE(slot.ok()) << slot.status();
  RmaSource unreadable = *slot->windows;
  unreadable.header.file = "/nowhere";
  slots_.windows_instead = &unreadable;
  EXPECT_EQ(Pull(*any, with).status().code(), StatusCode::kUnavailable);
  slots_.windows_instead = nullptr;
  ASSERT_TRUE(Pull(*any, with).ok());
  EXPECT_EQ(reports_.back().lane, Lane::kTcp);
  ASSERT_TRUE(Pull(*strict, with).ok());
  EXPECT_EQ(reports_.back().lane, Lane::kShmTest);
  // A lease of a lane that this process does not have.
  RemoteLease tcp = with;
  tcp.lane = Lane::kTcp;
  EXPECT_EQ(Pull(*strict, tcp).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Pull(*MakePuller(nullptr), with).status().code(), StatusCode::kInvalidArgument);
  PullerOptions nothing;
  nothing.require_rdma = true;
  EXPECT_EQ(Puller::Create(nothing).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(RmaPullerTest, AHostThatRequiresRdmaSendsNoBytesOverTcp) {
  Serve({.sends_bytes = false});
  auto any = MakePuller(TestDomain());
  const RemoteLease lease = Add(4, host_);
  ASSERT_TRUE(Pull(*any, lease).ok());
  EXPECT_EQ(reports_.back().lane, Lane::kShmTest);
  RemoteLease tcp = lease;
  tcp.lane = Lane::kTcp;
  const Status refused = Pull(*any, tcp).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
  EXPECT_NE(MessageOf(refused).find("require_rdma"), std::string::npos) << refused;
}

TEST(RmaSourceTest, ArrivesAsItWasAndDamageIsRefused) {
  const RmaSource source = {.address = std::string(300, 'a') + '\0' + "b",
                            .bytes = {1, 2, "key", "/proc/1/fd/3"},
                            .header = {3, kSlotHeaderBytes, "", ""},
                            .slot_id = ~uint64_t{0}};
  auto bytes = EncodeRmaSource(source);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->size(), kRmaSourceBytes);
  const auto parsed = ParseRmaSource(*bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->address, source.address);
  EXPECT_EQ(parsed->bytes.key, "key");
  EXPECT_EQ(parsed->bytes.file, "/proc/1/fd/3");
  EXPECT_EQ(parsed->header.bytes, kSlotHeaderBytes);
  EXPECT_EQ(parsed->slot_id, source.slot_id);
  RmaSource large = source;
  large.address.resize(kRmaSourceBytes);
  EXPECT_FALSE(EncodeRmaSource(large).ok());
  EXPECT_FALSE(ParseRmaSource({}).ok());
  std::mt19937_64 random(8);
  for (int i = 0; i < 2000; ++i) {  // any bytes are an answer or an error
    auto damaged = *bytes;
    damaged.resize(random() % 500);
    for (std::byte& one : damaged) {
      if (random() % 16 == 0) one = static_cast<std::byte>(random());
    }
    (void)ParseRmaSource(damaged);
  }
  bytes->resize(40);
  EXPECT_EQ(ParseRmaSource(*bytes).status().code(), StatusCode::kDataLoss);
}

TEST(RmaLaneTest, WhatIsRequiredAndNotThereIsSaid) {
  const auto found = titan::transport::FindTransports();
  ASSERT_TRUE(found.ok()) << found.status();
  const auto named = OpenRmaLane({.device = "no_such_device:1", .registered = {}});
  EXPECT_EQ(named.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(named.status())
                .find("rdma_device is set, but this machine has no RDMA device no_such_device:1"),
            std::string::npos)
      << named.status();
  if (!found->rdma.empty()) GTEST_SKIP() << "this machine has an RDMA device";
  const auto required = OpenRmaLane({.required = true, .device = "", .registered = {}});
  EXPECT_EQ(required.status().code(), StatusCode::kFailedPrecondition);
  for (const char* part : {"require_rdma is set, but this machine has no RDMA device", "tcp/"}) {
    EXPECT_NE(MessageOf(required.status()).find(part), std::string::npos) << required.status();
  }
  const auto any = OpenRmaLane({.device = "", .registered = {}});
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_EQ(any->domain, nullptr);  // never the test lane, which was not asked for
  EXPECT_NE(any->found.find("no RDMA device"), std::string::npos);
}

// A machine with a device, as its probe would tell it: what is decided from that is the same code
// wherever it runs.
RmaFacts WithDevice(uint64_t lockable_bytes) {
  return {{{"rc_mlx5/mlx5_0:1"}, {"tcp/eth0"}}, {.bytes = lockable_bytes}};
}

TEST(RmaLaneTest, ADeviceIsNotLeftUnusedForWantOfLockedMemory) {
  RmaWanted wanted{.device = "", .lock_bytes = 1 << 30, .registered = {}};
  const auto refused = ChooseRmaLane(wanted, WithDevice((1 << 30) - 1));
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted) << refused.status();
  for (const char* part :
       {"take 1073741824 bytes", "may lock 1073741823", "`ulimit -l`", "LimitMEMLOCK",
        "securityContext", "lower memory_limit_bytes", "set rdma_device to none"}) {
    EXPECT_NE(MessageOf(refused.status()).find(part), std::string::npos) << refused.status();
  }
  auto choice = ChooseRmaLane(wanted, WithDevice(1 << 30));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_TRUE(choice->opens);
  EXPECT_EQ(choice->found, "rc_mlx5/mlx5_0:1");
  // Whoever may lock all, or does not know yet how much it will, has nothing to compare.
  RmaFacts privileged = WithDevice(0);
  privileged.lockable.unlimited = true;
  EXPECT_TRUE(ChooseRmaLane(wanted, privileged)->opens);
  // Told to leave the device alone; or there is none.
  wanted.device = "none";
  choice = ChooseRmaLane(wanted, WithDevice(0));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_FALSE(choice->opens);
  EXPECT_EQ(choice->found, "rdma_device is none");
  wanted.device = "";
  choice = ChooseRmaLane(wanted, RmaFacts{{{}, {"tcp/eth0"}}, {.bytes = 0}});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_FALSE(choice->opens);
  wanted.lock_bytes = 0;
  EXPECT_TRUE(ChooseRmaLane(wanted, WithDevice(0))->opens);
  // Another device than the one that is named counts for nothing.
  wanted.device = "mlx5_1:1";
  EXPECT_EQ(ChooseRmaLane(wanted, WithDevice(1 << 30)).status().code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace titan::weightstore::lanes
