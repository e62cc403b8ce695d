// SPDX-License-Identifier: Apache-2.0
//
// Goal: the RDMA lane behind the transports' interface: ranges land or bounce, a slot that is taken
// away, a killed source and pieces it cannot do are errors in time, and a plan carried out over it
// gives what it gives in memory. Method: a host process with windows over shared memory (shm-test).
#include "weightstore/transport/rma_transport.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/support/served_slots.h"
#include "weightstore/client/slot_header.h"
#include "weightstore/reshard/copy.h"
#include "weightstore/transport/pull.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::ByteOf;
using titan::transport::RmaDomain;
using titan::transport::RmaLane;
using titan::transport::RmaOptions;
using titan::transport::RmaWindow;
using titan::transport::RmaWindowKey;

constexpr size_t kSlotBytes = size_t{3} << 20;

SteadyTime Soon() { return steady_clock::now() + seconds(20); }

RmaOptions TestLane() {
  RmaOptions options;
  options.lane = RmaLane::kShmTest;
  options.piece_bytes = 256 << 10;
  return options;
}

// A process with one slot of version 4 under grant 9. To a byte it answers with one after it has
// raised the grant.
class HostProcess {
 public:
  HostProcess() {
    EXPECT_EQ(pipe(to_host_), 0);
    EXPECT_EQ(pipe(from_host_), 0);
    pid_ = fork();
    if (pid_ == 0) Serve();
    source.address = ReceiveText();
    source.bytes = ReceiveKey();
    source.header = ReceiveKey();
    source.slot_id = 7;
  }
  ~HostProcess() {
    Kill();
    for (const int fd : {to_host_[0], to_host_[1], from_host_[0], from_host_[1]}) close(fd);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void RaiseGrant() {
    char byte = 'r';
    EXPECT_EQ(write(to_host_[1], &byte, 1), 1);
    EXPECT_EQ(read(from_host_[0], &byte, 1), 1);
  }

  RmaSource source;

 private:
  [[noreturn]] void Serve() {
    {
      auto domain = RmaDomain::Open(TestLane());
      if (!domain.ok()) _exit(2);
      auto bytes = (*domain)->Allocate(kSlotBytes);
      auto header = (*domain)->Allocate(kSlotHeaderBytes);
      if (!bytes.ok() || !header.ok()) _exit(3);
      for (size_t i = 0; i < kSlotBytes; ++i) bytes->memory()[i] = ByteOf(4, i);
      SlotHeaderPage page(header->memory().data());
      page.Write({.slot_id = 7, .version = 4, .grant = 9, .digest = {4, 7}});
      SendText((*domain)->address());
      SendKey(bytes->key());
      SendKey(header->key());
      char byte;
      while (read(to_host_[0], &byte, 1) == 1) {
        page.Write({.slot_id = 7, .version = 5, .grant = 10, .digest = {5, 7}});
        (void)!write(from_host_[1], &byte, 1);
      }
    }
    _exit(0);
  }
  void SendText(const std::string& text) {
    const uint64_t size = text.size();
    (void)!write(from_host_[1], &size, sizeof(size));
    (void)!write(from_host_[1], text.data(), size);
  }
  void SendKey(const RmaWindowKey& key) {
    (void)!write(from_host_[1], &key.address, 8);
    (void)!write(from_host_[1], &key.bytes, 8);
    SendText(key.key);
  }
  uint64_t ReceiveNumber() {
    uint64_t number = 0;
    EXPECT_EQ(read(from_host_[0], &number, 8), 8) << "the host process did not start";
    return number;
  }
  std::string ReceiveText() {
    std::string text(ReceiveNumber(), '\0');
    EXPECT_EQ(read(from_host_[0], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return text;
  }
  RmaWindowKey ReceiveKey() {
    RmaWindowKey key;
    key.address = ReceiveNumber();
    key.bytes = ReceiveNumber();
    key.key = ReceiveText();
    return key;
  }

  int to_host_[2], from_host_[2];
  pid_t pid_ = 0;
};

PullGrant Grant() {
  PullGrant grant;
  grant.lease.lease_id = 1;
  grant.lease.grant = 9;
  grant.lease.version = 4;
  grant.lease.digest = {4, 7};
  return grant;
}

class RmaTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto domain = RmaDomain::Open(TestLane());
    ASSERT_TRUE(domain.ok()) << domain.status();
    domain_ = *std::move(domain);
    auto landing = domain_->Allocate(kSlotBytes);
    ASSERT_TRUE(landing.ok()) << landing.status();
    landing_ = *std::move(landing);
  }
  std::unique_ptr<RmaTransport> Transport(RmaTransportOptions options = {}) {
    auto transport = RmaTransport::Create(*domain_, host_.source, landing_, options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }

  HostProcess host_;  // forked before this process has threads
  std::unique_ptr<RmaDomain> domain_;
  RmaWindow landing_;
};

TEST_F(RmaTransportTest, RangesLandOrBounceAndStatesItsLane) {
  auto transport = Transport({.bounce_bytes = 1000});
  EXPECT_EQ(transport->lane(), Lane::kShmTest);
  auto slot = transport->Open(Grant(), Soon());
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ((*slot)->slot_bytes(), kSlotBytes);
  std::vector<std::byte> other(12'345);
  const std::vector<Piece> pieces = {
      {.source_offset = 77, .destination = landing_.memory().subspan(3, kSlotBytes - 100)},
      {.source_offset = kSlotBytes - other.size(), .destination = other}};
  const Status status = (*slot)->Read(pieces, Soon());
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < kSlotBytes - 100; ++i) {
    ASSERT_EQ(landing_.memory()[3 + i], ByteOf(4, 77 + i)) << i;
  }
  for (size_t i = 0; i < other.size(); ++i) {
    ASSERT_EQ(other[i], ByteOf(4, kSlotBytes - other.size() + i)) << i;
  }
  EXPECT_EQ(landing_.memory()[2], std::byte{0});
  const Piece packed = {
      .destination = std::span(other).first(8), .run_bytes = 4, .loops = {{2, 9}}};
  EXPECT_EQ((*slot)->Read(std::span(&packed, 1), Soon()).code(), StatusCode::kInvalidArgument);
  const Piece outside = {.source_offset = kSlotBytes - 1, .destination = other};
  EXPECT_EQ((*slot)->Read(std::span(&outside, 1), Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*slot)->Read(pieces, steady_clock::now()).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(RmaTransportTest, WhatIsNotTheLeasesIsNotTaken) {
  auto transport = Transport();
  PullGrant grant = Grant();
  grant.lease.grant = 8;
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
  host_.RaiseGrant();
  const Piece piece = {.source_offset = 0, .destination = landing_.memory()};
  EXPECT_EQ(ReasonOf((*slot)->Read(std::span(&piece, 1), Soon())), kStaleHandle);
  EXPECT_FALSE(RmaTransport::Create(*domain_, RmaSource{}, landing_).ok());
  EXPECT_FALSE(RmaTransport::Create(*domain_, host_.source, landing_, {.bounce_bytes = 0}).ok());
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

TEST_F(RmaTransportTest, APlanIsCarriedOut) {
  auto transport = Transport({.bounce_bytes = 4096});
  auto slot = transport->Open(Grant(), Soon());
  ASSERT_TRUE(slot.ok()) << slot.status();
  std::vector<std::byte> bytes(kSlotBytes);
  for (size_t i = 0; i < kSlotBytes; ++i) bytes[i] = ByteOf(4, i);
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
