// SPDX-License-Identifier: Apache-2.0
//
// Goal: the RDMA lane behind the transports' interface: ranges land or bounce, a slot that is taken
// away, a killed source and pieces it cannot do are errors in time, and a plan carried out over it
// gives what it gives in memory. Method: a host process with windows over shared memory (shm-test).
#include "weightstore/transport/rma_transport.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/support/rma_host.h"
#include "weightstore/client/reason.h"
#include "weightstore/reshard/copy.h"
#include "weightstore/store_state.h"
#include "weightstore/transport/pull.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::Differing;
using testing::kRmaSlotBytes;
using testing::RmaHost;
using testing::RmaTestLane;
using testing::WordAt;
using titan::transport::RmaDomain;
using titan::transport::RmaWindow;

SteadyTime Soon() { return steady_clock::now() + seconds(20); }

// Of version 0.
std::byte ByteAt(uint64_t at) { return static_cast<std::byte>(WordAt(0, at / 8) >> (at % 8 * 8)); }

RmaSource SourceOf(const RmaHost& host) {
  return {.address = host.address, .bytes = host.bytes, .header = host.header, .slot_id = 7};
}

PullGrant Grant(uint64_t version = 0) {
  PullGrant grant;
  grant.lease.lease_id = 1;
  grant.lease.grant = version + 1;
  grant.lease.version = version;
  grant.lease.digest = {version, 7};
  return grant;
}

class RmaTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto domain = RmaDomain::Open(RmaTestLane());
    ASSERT_TRUE(domain.ok()) << domain.status();
    domain_ = *std::move(domain);
    auto landing = domain_->Allocate(kRmaSlotBytes);
    ASSERT_TRUE(landing.ok()) << landing.status();
    landing_ = *std::move(landing);
  }
  std::unique_ptr<RmaTransport> Transport(RmaTransportOptions options = {}) {
    auto transport = RmaTransport::Create(*domain_, SourceOf(host_), landing_, options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }

  RmaHost host_;  // forked before this process has threads
  std::unique_ptr<RmaDomain> domain_;
  RmaWindow landing_;
};

TEST_F(RmaTransportTest, RangesLandOrBounceAndStatesItsLane) {
  auto transport = Transport({.step_bytes = 1000});
  EXPECT_EQ(transport->lane(), Lane::kShmTest);
  auto slot = transport->Open(Grant(), Soon());
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ((*slot)->slot_bytes(), kRmaSlotBytes);
  std::vector<std::byte> other(12'345);
  const std::vector<Piece> pieces = {
      {.source_offset = 77, .destination = landing_.memory().subspan(3, kRmaSlotBytes - 100)},
      {.source_offset = kRmaSlotBytes - other.size(), .destination = other}};
  const Status status = (*slot)->Read(pieces, Soon());
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < kRmaSlotBytes - 100; ++i) {
    ASSERT_EQ(landing_.memory()[3 + i], ByteAt(77 + i)) << i;
  }
  for (size_t i = 0; i < other.size(); ++i) {
    ASSERT_EQ(other[i], ByteAt(kRmaSlotBytes - other.size() + i)) << i;
  }
  EXPECT_EQ(landing_.memory()[2], std::byte{0});
  const Piece packed = {
      .destination = std::span(other).first(8), .run_bytes = 4, .loops = {{2, 9}}};
  EXPECT_EQ((*slot)->Read(std::span(&packed, 1), Soon()).code(), StatusCode::kInvalidArgument);
  const Piece outside = {.source_offset = kRmaSlotBytes - 1, .destination = other};
  EXPECT_EQ((*slot)->Read(std::span(&outside, 1), Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*slot)->Read(pieces, steady_clock::now()).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(RmaTransportTest, WhatIsNotTheLeasesIsNotTaken) {
  auto transport = Transport();
  PullGrant grant = Grant();
  grant.lease.grant = 2;
  Status status = transport->Open(grant, Soon()).status();
  EXPECT_EQ(ReasonOf(status), kStaleHandle) << status;
  grant = Grant();
  grant.lease.digest.low = 5;
  EXPECT_EQ(transport->Open(grant, Soon()).status().code(), StatusCode::kDataLoss);
  grant = Grant();
  grant.expires = steady_clock::now();
  EXPECT_EQ(ReasonOf(transport->Open(grant, Soon()).status()), kLeaseExpired);
  auto slot = transport->Open(Grant(), Soon());
  ASSERT_TRUE(slot.ok()) << slot.status();
  host_.NextVersion();
  host_.NextVersionIsWritten();
  const Piece piece = {.source_offset = 0, .destination = landing_.memory()};
  EXPECT_EQ(ReasonOf((*slot)->Read(std::span(&piece, 1), Soon())), kStaleHandle);
  EXPECT_FALSE(RmaTransport::Create(*domain_, RmaSource{}, landing_).ok());
  EXPECT_FALSE(RmaTransport::Create(*domain_, SourceOf(host_), landing_, {.step_bytes = 0}).ok());
}

TEST_F(RmaTransportTest, AVersionThatIsTakenAwayIsNeverPassedOff) {
  auto transport = Transport();
  int taken = 0;
  for (uint64_t version = 0; version < 40; ++version) {
    auto slot = transport->Open(Grant(version), Soon());
    ASSERT_TRUE(slot.ok()) << slot.status();
    // From before the read to after it, a little later each time.
    host_.NextVersion();
    std::this_thread::sleep_for(std::chrono::microseconds(10 * (version % 20)));
    const Piece piece = {.source_offset = 0, .destination = landing_.memory()};
    const Status read = (*slot)->Read(std::span(&piece, 1), Soon());
    if (read.ok()) {
      EXPECT_EQ(Differing(landing_.memory(), version), 0u) << version;
    } else {
      EXPECT_EQ(ReasonOf(read), kStaleHandle) << read;
      ++taken;
    }
    host_.NextVersionIsWritten();
    EXPECT_EQ(ReasonOf((*slot)->Confirm(Soon())), kStaleHandle);
  }
  EXPECT_GT(taken, 0);
}

TEST_F(RmaTransportTest, AKilledSourceEndsTheReadInTime) {
  auto transport = Transport();
  auto slot = transport->Open(Grant(), Soon());
  ASSERT_TRUE(slot.ok()) << slot.status();
  const Piece piece = {.source_offset = 0, .destination = landing_.memory()};
  ASSERT_TRUE((*slot)->Read(std::span(&piece, 1), Soon()).ok());  // both windows are open now
  host_.Kill();
  const auto killed = steady_clock::now();
  Status status = OkStatus();
  // Over shared memory the slot stays readable, unchanged, until the keep-alive misses its owner.
  while (status.ok() && steady_clock::now() - killed < seconds(10)) {
    status = (*slot)->Read(std::span(&piece, 1), Soon());
  }
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
}

TEST(RmaTransportOptionsTest, TheSlowestLinkThatLeasesAllowForIsNotTakenForASourceThatIsGone) {
  const RmaTransportOptions options;
  const uint64_t step_ms = options.step_bytes * 1000 / kSlowestLinkBytesPerSecond;
  EXPECT_LT(step_ms, static_cast<uint64_t>(options.stall_timeout.count()));
}

TEST_F(RmaTransportTest, APlanIsCarriedOut) {
  auto transport = Transport({.step_bytes = 4096});
  auto slot = transport->Open(Grant(), Soon());
  ASSERT_TRUE(slot.ok()) << slot.status();
  std::vector<std::byte> bytes(kRmaSlotBytes);
  for (size_t i = 0; i < kRmaSlotBytes; ++i) bytes[i] = ByteAt(i);
  for (const auto method :
       {reshard::Method::kDirect, reshard::Method::kOverRead, reshard::Method::kPack}) {
    const std::vector<reshard::Region> regions = {{.method = method,
                                                   .source_offset = 40,
                                                   .destination_offset = 8,
                                                   .run_bytes = 100,
                                                   .loops = {{7, 9000, 1500}, {5, 300, 200}}}};
    std::vector<std::byte> got(20'000), wanted(20'000);
    ASSERT_TRUE(reshard::CopyRegion(regions[0], bytes, 0, wanted).ok());
    const std::vector<RemoteSlot*> sources = {slot->get()};
    const Status status = PullRegions(regions, sources, got, Soon());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(got, wanted);
  }
}

}  // namespace
}  // namespace titan::weightstore::lanes
