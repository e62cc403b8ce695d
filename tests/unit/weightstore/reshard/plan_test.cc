// SPDX-License-Identifier: Apache-2.0
//
// Goal: what a plan looks like: contiguous runs are merged, replicas share the load, the cost model
// chooses, mismatches are refused by name, the cache gives back the plan. Method: small layouts
// whose plans are known.
#include "weightstore/reshard/plan.h"

#include <gtest/gtest.h>

#include <string_view>

#include "weightstore/reshard/copy.h"
#include "weightstore/reshard/cuts.h"
#include "weightstore/reshard/plan_cache.h"

namespace titan::weightstore::reshard {
namespace {

constexpr AxisRule kRows = {.kind = AxisRule::Kind::kShard, .dimension = 0};
constexpr AxisRule kColumns = {.kind = AxisRule::Kind::kShard, .dimension = 1};
constexpr AxisRule kReplicas = {};

Placement Cut(std::vector<int64_t> shape, uint32_t ranks, AxisRule rule) {
  MeshCut cut;
  cut.tensors = {{"w", std::move(shape), DType::kF32, Layout::kRows}};
  cut.mesh = {ranks};
  cut.rules = {{rule}};
  auto placement = CutByMesh(cut);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return *std::move(placement);
}

void ExpectRefused(const Status& status, std::string_view reason) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(MessageOf(status).starts_with(reason)) << status;
}

TEST(PlanTest, AWholeSlotIsOneRun) {
  MeshCut cut;
  for (int i = 0; i < 8; ++i) {
    cut.tensors.push_back({"w" + std::to_string(i), {64, 16}, DType::kBf16, Layout::kRows});
    cut.rules.push_back({kRows});
  }
  cut.mesh = {4};
  const auto placement = CutByMesh(cut);
  ASSERT_TRUE(placement.ok());
  const auto plan = MakePlan(*placement, *placement, CostModel{});
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (uint32_t p = 0; p < 4; ++p) {
    ASSERT_EQ(plan->regions[p].size(), 1u);
    EXPECT_EQ(plan->regions[p][0], (Region{.source = p, .run_bytes = 8 * 16 * 16 * 2}));
  }
}

TEST(PlanTest, RowsToColumnsIsOneRegionForEachSource) {
  const auto plan = MakePlan(Cut({8, 6}, 2, kRows), Cut({8, 6}, 2, kColumns), CostModel{});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->regions[1].size(), 2u);
  Region wanted = {.source = 1,
                   .source_offset = 12,
                   .destination_offset = 48,
                   .run_bytes = 12,
                   .loops = {{4, 24, 12}}};
  wanted.method = plan->regions[1][1].method;
  EXPECT_EQ(plan->regions[1][1], wanted);
  EXPECT_EQ(plan->stats.num_bytes, 8u * 6 * 4);
}

TEST(PlanTest, ReplicasShareTheLoad) {
  MeshCut cut;
  for (int i = 0; i < 12; ++i) {
    cut.tensors.push_back({"w" + std::to_string(i), {16}, DType::kF32, Layout::kRows});
    cut.rules.push_back({kReplicas});
  }
  cut.mesh = {3};
  const auto source = CutByMesh(cut);
  cut.mesh = {1};
  const auto destination = CutByMesh(cut);
  ASSERT_TRUE(source.ok() && destination.ok());
  const auto plan = MakePlan(*source, *destination, CostModel{});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<uint64_t> bytes(3);
  for (const Region& region : plan->regions[0]) bytes[region.source] += region.num_bytes();
  EXPECT_EQ(bytes, (std::vector<uint64_t>{256, 256, 256}));
}

TEST(PlanTest, TheCostModelChooses) {
  // 2 of 1024 columns: the wire would carry 512 times too much, 1024 reads would wait too long.
  const CostModel costs;
  EXPECT_EQ(Cheapest(costs, {.num_runs = 1024, .run_bytes = 8, .range_bytes = 4096 * 1024}).method,
            Method::kPack);
  // Almost all of the range, in small runs.
  EXPECT_EQ(Cheapest(costs, {.num_runs = 1024,
                             .run_bytes = 4000,
                             .range_bytes = 4096 * 1024,
                             .destination_contiguous = false})
                .method,
            Method::kOverRead);
  // Long runs.
  EXPECT_EQ(
      Cheapest(costs, {.num_runs = 4, .run_bytes = 64 << 20, .range_bytes = uint64_t{1} << 30})
          .method,
      Method::kDirect);
  EXPECT_EQ(Cheapest(costs, {.num_runs = 1, .run_bytes = 1, .range_bytes = 1}).method,
            Method::kDirect);
  CostModel no_pack = costs;
  no_pack.can_pack = false;
  EXPECT_NE(
      Cheapest(no_pack, {.num_runs = 1024, .run_bytes = 8, .range_bytes = 4096 * 1024}).method,
      Method::kPack);
  // Saturates instead of wrapping round.
  const RegionSize endless = {
      .num_runs = ~uint64_t{0}, .run_bytes = 2, .range_bytes = ~uint64_t{0}};
  EXPECT_EQ(CostOf(costs, endless, Method::kDirect), ~uint64_t{0});
  // What is mapped is copied where it lies.
  EXPECT_EQ(
      Cheapest(MappedLaneCosts(), {.num_runs = 1024, .run_bytes = 64, .range_bytes = 4096 * 1024})
          .method,
      Method::kDirect);
}

TEST(PlanTest, RefusesByName) {
  const Placement whole = Cut({8, 6}, 2, kRows);
  Placement other = whole;
  other.tensors[0].dtype = DType::kBf16;
  ExpectRefused(MakePlan(whole, other, CostModel{}).status(), "dtype");
  ExpectRefused(MakePlan(whole, Cut({6, 8}, 1, kRows), CostModel{}).status(), "shape");
  other = whole;
  other.tensors[0].name = "v";
  ExpectRefused(MakePlan(whole, other, CostModel{}).status(), "gap: the source has no tensor 'v'");
  other = whole;
  other.participants.pop_back();  // rows 4 to 8 are gone
  const Status gap = MakePlan(other, whole, CostModel{}).status();
  ExpectRefused(gap, "gap: tensor 'w'");
  EXPECT_NE(MessageOf(gap).find("[4:8, 0:6]"), std::string::npos) << gap;
  EXPECT_TRUE(MakePlan(whole, other, CostModel{}).ok());  // a destination may want less
  other.participants[0].slot_bytes = 1;
  ExpectRefused(MakePlan(other, whole, CostModel{}).status(), "source: bounds");
  ExpectRefused(MakePlan(whole, other, CostModel{}).status(), "destination: bounds");
  Placement packed = {{{"w", {8, 6}, DType::kF32, Layout::kPanels32}},
                      {{768, {{0, {0, 0}, {8, 6}, 0, {}}}}}};
  ExpectRefused(MakePlan(whole, packed, CostModel{}).status(), "layout");
}

TEST(PlanTest, RegionsThatDoNotFitAreRefusedNotCopied) {
  std::vector<std::byte> source(64), destination(64), packed(8);
  Region region = {.source_offset = 60, .run_bytes = 4};
  EXPECT_TRUE(CopyRegion(region, source, 0, destination).ok());
  EXPECT_FALSE(CopyRegion(region, source, 1, destination).ok() &&
               CopyRegion(region, std::span(source).first(62), 0, destination).ok());
  region.source_offset = 61;
  EXPECT_FALSE(CopyRegion(region, source, 0, destination).ok());
  region = {.run_bytes = 4, .loops = {{~uint64_t{0}, ~uint64_t{0}, 1}}};
  EXPECT_FALSE(CopyRegion(region, source, 0, destination).ok());
  region = {.run_bytes = 4, .loops = {{uint64_t{1} << 33, 0, 0}, {uint64_t{1} << 33, 0, 0}}};
  EXPECT_FALSE(CopyRegion(region, source, 0, destination).ok());
  region = {.run_bytes = 4, .loops = {{4, 8, 4}}};
  EXPECT_TRUE(GatherRuns(region, 2, 2, source, packed).ok());
  EXPECT_FALSE(GatherRuns(region, 3, 2, source, packed).ok());
  EXPECT_FALSE(GatherRuns(region, ~uint64_t{0}, 2, source, packed).ok());
  EXPECT_FALSE(PlaceRuns(region, 0, 1, packed, destination).ok());
}

TEST(PlanCacheTest, GivesThePlanBackAndDropsTheOldest) {
  PlanCache cache(CostModel{}, 2);
  const Placement a = Cut({8, 6}, 1, kRows), b = Cut({8, 6}, 2, kRows), c = Cut({8, 6}, 3, kRows);
  const auto first = cache.Get(a, b);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*cache.Get(a, b), *first);
  EXPECT_EQ(cache.hits(), 1u);
  EXPECT_TRUE(cache.Get(b, a).ok());
  EXPECT_TRUE(cache.Get(a, b).ok());  // used again
  EXPECT_TRUE(cache.Get(a, c).ok());  // drops b to a
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(*cache.Get(a, b), *first);
  EXPECT_EQ(cache.hits(), 3u);
  EXPECT_FALSE(cache.Get(a, Cut({6, 8}, 1, kRows)).ok());
  EXPECT_EQ(cache.size(), 2u);
}

}  // namespace
}  // namespace titan::weightstore::reshard
