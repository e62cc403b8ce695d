// SPDX-License-Identifier: Apache-2.0
//
// Goal: a plan carried out over a lane gives what it gives in memory, bitwise, whatever the method
// and however little scratch there is; the lane of the same host maps, copies and notices that it
// was fenced. Method: random layouts served by TCP and by the map of a real store.
#include "weightstore/transport/pull.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/reshard_layouts.h"
#include "tests/support/sanitized.h"
#include "tests/support/served_slots.h"
#include "tests/support/weightstore_host.h"
#include "weightstore/reshard/copy.h"
#include "weightstore/transport/map_transport.h"
#include "weightstore/transport/tcp_server.h"
#include "weightstore/transport/tcp_transport.h"

namespace titan::weightstore::lanes {
namespace {

using reshard::testing::FilledSlots;
using reshard::testing::Random;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::ServedSlots;

SteadyTime Soon() { return steady_clock::now() + seconds(20); }

// What a plan gives in memory.
std::vector<std::byte> InMemory(const std::vector<reshard::Region>& regions,
                                const std::vector<std::vector<std::byte>>& sources, size_t size) {
  std::vector<std::byte> slot(size, std::byte{0xee});
  for (const reshard::Region& region : regions) {
    EXPECT_TRUE(reshard::CopyRegion(region, sources[region.source], 0, slot).ok());
  }
  return slot;
}

TEST(PullTest, OverTcpEqualsInMemory) {
  reshard::PlanStats seen;
  for (uint64_t seed = 1; seed <= titan::testing::Rounds<uint64_t>(120, 20); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto tensors = reshard::testing::RandomTensors(random);
    const reshard::Placement from = reshard::testing::RandomBoxes(random, tensors);
    const reshard::Placement to = reshard::testing::RandomBoxes(random, tensors);
    reshard::CostModel costs;
    costs.read_ps = random.Below(3) * 100'000;
    costs.wire_ps_per_byte = 1 + random.Below(2000);
    costs.run_ps = random.Below(1000);
    const auto plan = reshard::MakePlan(from, to, costs);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto sources = FilledSlots(from, std::byte{0xaa});
    ServedSlots slots;
    auto server = TcpServer::Start({}, slots);
    ASSERT_TRUE(server.ok()) << server.status();
    auto transport = TcpTransport::Create((*server)->address(),
                                          {.streams = 2, .piece_bytes = 1 + random.Below(200)});
    std::vector<std::unique_ptr<RemoteSlot>> open;
    std::vector<RemoteSlot*> pointers;
    for (const std::vector<std::byte>& source : sources) {
      pointers.push_back(nullptr);
      if (source.empty()) continue;
      const uint64_t lease = slots.Add(source.size(), 1);
      std::copy(source.begin(), source.end(), slots.bytes(lease).begin());
      auto slot = (*transport)->Open(slots.GrantOf(lease), Soon());
      ASSERT_TRUE(slot.ok()) << slot.status();
      open.push_back(*std::move(slot));
      pointers.back() = open.back().get();
    }
    const PullOptions options = {.parallel_sources = static_cast<int>(1 + random.Below(3)),
                                 .scratch_bytes = 1 + random.Below(300),
                                 .max_pieces = 1 + random.Below(20)};
    for (size_t p = 0; p < to.participants.size(); ++p) {
      std::vector<std::byte> slot(to.participants[p].slot_bytes, std::byte{0xee});
      const Status status = PullRegions(plan->regions[p], pointers, slot, Soon(), options);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(slot, InMemory(plan->regions[p], sources, slot.size())) << "participant " << p;
    }
    seen.direct_regions += plan->stats.direct_regions;
    seen.over_read_regions += plan->stats.over_read_regions;
    seen.pack_regions += plan->stats.pack_regions;
  }
  EXPECT_GT(seen.direct_regions, 20u);
  EXPECT_GT(seen.over_read_regions, 20u);
  EXPECT_GT(seen.pack_regions, 20u);
}

TEST(PullTest, RefusesWhatThePlanDoesNotFit) {
  std::vector<std::byte> slot(64);
  const std::vector<reshard::Region> regions = {{.run_bytes = 8}};
  EXPECT_EQ(PullRegions(regions, {}, slot, Soon()).code(), StatusCode::kInvalidArgument);
  std::vector<RemoteSlot*> none = {nullptr};
  EXPECT_EQ(PullRegions(regions, none, slot, Soon()).code(), StatusCode::kInvalidArgument);
  ServedSlots slots;
  const uint64_t lease = slots.Add(64, 1);
  auto server = TcpServer::Start({}, slots);
  auto transport = TcpTransport::Create((*server)->address(), {});
  auto open = (*transport)->Open(slots.GrantOf(lease), Soon());
  ASSERT_TRUE(open.ok()) << open.status();
  const std::vector<RemoteSlot*> sources = {open->get()};
  for (const reshard::Region& region :
       std::vector<reshard::Region>{{.source_offset = 60, .run_bytes = 8},
                                    {.destination_offset = 60, .run_bytes = 8},
                                    {.run_bytes = 0},
                                    {.source = 1, .run_bytes = 8}}) {
    EXPECT_EQ(PullRegions(std::span(&region, 1), sources, slot, Soon()).code(),
              StatusCode::kInvalidArgument);
  }
  slots.EndLease();
  const Status ended = PullRegions(regions, sources, slot, Soon());
  EXPECT_EQ(ended.code(), StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(ended), kLeaseExpired);
  EXPECT_NE(MessageOf(ended).find("source 0"), std::string::npos) << ended;
}

class MapTransportTest : public ::testing::Test {
 protected:
  PullGrant Publish(uint64_t version) {
    if (publisher_ == nullptr) publisher_ = host_.Register();
    weightstore::testing::Publish(*publisher_, version);
    PullGrant grant;
    grant.lease = *host_.leader().AcquireLease("generator-0", "run", version, false);
    return grant;
  }
  weightstore::testing::Host host_;
  std::unique_ptr<Publisher> publisher_;
};

TEST_F(MapTransportTest, MapsCopiesAndNoticesAFence) {
  const PullGrant grant = Publish(0);
  auto transport = MapTransport::Create(host_.socket_path());
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ((*transport)->lane(), Lane::kMap);
  auto slot = (*transport)->Open(grant, Soon());
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(weightstore::testing::NumberIn((*slot)->mapped()), 0u);
  std::vector<std::byte> copy((*slot)->slot_bytes(), std::byte{1});
  const std::vector<Piece> pieces = {{.source_offset = 0, .destination = copy}};
  ASSERT_TRUE((*slot)->Read(pieces, Soon()).ok());
  EXPECT_EQ(weightstore::testing::NumberIn(copy), 0u);
  const std::vector<reshard::Region> regions = {
      {.source_offset = 8, .destination_offset = 0, .run_bytes = 8, .loops = {{3, 16, 8}}}};
  const std::vector<RemoteSlot*> sources = {slot->get()};
  EXPECT_TRUE(PullRegions(regions, sources, copy, Soon()).ok());
  EXPECT_EQ((*slot)->Read(pieces, steady_clock::now()).code(), StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(host_.leader().FenceReaders("run", 0).ok());
  const Status fenced = (*slot)->Read(pieces, Soon());
  EXPECT_EQ(fenced.code(), StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(fenced), kStaleHandle);
  EXPECT_FALSE(PullRegions(regions, sources, copy, Soon()).ok());
  EXPECT_FALSE((*transport)->Open(grant, Soon()).ok());  // the lease has ended
}

TEST_F(MapTransportTest, RefusesWhatIsNotThere) {
  EXPECT_FALSE(MapTransport::Create(std::string(200, 'x')).ok());
  auto transport = MapTransport::Create(host_.socket_path() + ".none");
  ASSERT_TRUE(transport.ok());
  EXPECT_EQ((*transport)->Open(Publish(0), Soon()).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ((*transport)->Open({}, Soon()).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::weightstore::lanes
