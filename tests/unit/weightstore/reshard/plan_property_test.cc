// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever the two layouts, carrying a plan out gives bitwise what gathering the whole
// weights and slicing them gives, and touches no other byte. Method: random tensors (uneven, empty,
// scalar, packed), random meshes (FSDP, TP, EP, replicas, fused and interleaved groups) and random
// boxes on either side, random costs; slots filled and read by formulas of
// tests/support/reshard_layouts.h that the planner does not share. Any failure prints the seed of
// its pair.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/reshard_layouts.h"
#include "tests/support/sanitized.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/reshard/copy.h"
#include "weightstore/reshard/fragment_digest.h"
#include "weightstore/reshard/plan.h"

namespace titan::weightstore::reshard {
namespace {

using testing::EachElement;
using testing::ElementBytesOf;
using testing::ElementValue;
using testing::FilledSlots;
using testing::Random;
using titan::testing::Rounds;

constexpr std::byte kSourceFiller{0xaa}, kUntouched{0xee};

Placement RandomPlacement(Random& random, const std::vector<TensorSpec>& tensors) {
  if (random.OneIn(2)) return testing::RandomBoxes(random, tensors);
  MeshCut cut = testing::RandomMesh(random, tensors);
  StatusOr<Placement> placement = CutByMesh(cut);
  if (!placement.ok()) {  // parts of a fused group that were cut unalike
    cut.fused.clear();
    placement = CutByMesh(cut);
  }
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *std::move(placement) : Placement{};
}

CostModel RandomCosts(Random& random) {
  CostModel costs;
  costs.read_ps = random.Below(3) * 100'000;
  costs.wire_ps_per_byte = 1 + random.Below(2'000);
  costs.run_ps = random.Below(20'000);
  costs.max_read_bytes = 1 + random.Below(64);
  costs.can_pack = !random.OneIn(3);
  return costs;
}

// A region as a reader over a wire carries it out.
Status CarryOut(Random& random, const Region& region, const std::vector<std::byte>& source,
                std::vector<std::byte>& destination) {
  switch (region.method) {
    case Method::kDirect:
      return CopyRegion(region, source, 0, destination);
    case Method::kOverRead: {
      const auto* begin = source.data() + region.source_offset;
      const std::vector<std::byte> range(begin, begin + region.range_bytes());
      return CopyRegion(region, range, region.source_offset, destination);
    }
    case Method::kPack:
      for (uint64_t run = 0; run < region.num_runs();) {
        const uint64_t count = 1 + random.Below(region.num_runs() - run);
        std::vector<std::byte> packed(count * region.run_bytes);
        TITAN_RETURN_IF_ERROR(GatherRuns(region, run, count, source, packed));
        TITAN_RETURN_IF_ERROR(PlaceRuns(region, run, count, packed, destination));
        run += count;
      }
      return OkStatus();
  }
  return Internal("no such method");
}

// Compares a slot with what gather and slice would have put there.
::testing::AssertionResult HoldsItsSlice(const Placement& placement, size_t participant,
                                         const std::vector<std::byte>& slot) {
  std::vector<bool> may_differ(slot.size(), false);
  for (const Fragment& fragment : placement.participants[participant].fragments) {
    const TensorSpec& tensor = placement.tensors[fragment.tensor];
    const uint64_t bytes = ElementBytesOf(tensor);
    if (tensor.layout != Layout::kRows && fragment.shape[0] > 0) {  // pad lanes are nobody's
      const uint64_t columns = tensor.layout == Layout::kPanels32
                                   ? static_cast<uint64_t>(fragment.shape[1])
                                   : static_cast<uint64_t>(fragment.shape[1] + 1) / 2;
      const uint64_t size = static_cast<uint64_t>(fragment.shape[0] + 31) / 32 * 128 * columns;
      for (uint64_t i = 0; i < size; ++i) may_differ[fragment.slot_offset + i] = true;
    }
    bool equal = true;
    EachElement(tensor, fragment, [&](uint64_t index, uint64_t offset) {
      const uint64_t value = ElementValue(tensor.name, index);
      equal &= std::memcmp(&slot[offset], &value, bytes) == 0;
      for (uint64_t i = 0; i < bytes; ++i) may_differ[offset + i] = true;
    });
    if (!equal) return ::testing::AssertionFailure() << tensor.name << " has other elements";
  }
  for (size_t i = 0; i < slot.size(); ++i) {
    if (!may_differ[i] && slot[i] != kUntouched) {
      return ::testing::AssertionFailure() << "byte " << i << " is no fragment's and was written";
    }
  }
  return ::testing::AssertionSuccess();
}

// The digest of the whole weights, by the module that the store uses.
Hash128 WholeDigest(const std::vector<TensorSpec>& tensors) {
  Hash128 sum;
  for (const TensorSpec& tensor : tensors) {
    Fragment whole{0, std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape, 0, {}};
    TensorSpec rows = tensor;
    rows.layout = Layout::kRows;
    uint64_t bytes = ElementBytesOf(tensor);
    for (const int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
    if (bytes == 0) continue;
    const auto slots = FilledSlots({{rows}, {{bytes, {whole}}}}, kSourceFiller);
    TensorEntry entry;
    entry.name = tensor.name;
    entry.shape = tensor.shape;
    entry.dtype = tensor.dtype;
    sum += TensorDigest(entry, slots[0].data());
  }
  return sum;
}

// The sum of the ranks' parts, or nothing where some run of 256 elements is cut.
StatusOr<Hash128> SumOfParts(const Placement& placement,
                             const std::vector<std::vector<std::byte>>& slots) {
  TITAN_ASSIGN_OR_RETURN(const auto shares, DigestShares(placement));
  Hash128 sum;
  for (size_t p = 0; p < placement.participants.size(); ++p) {
    const Participant& participant = placement.participants[p];
    for (size_t i = 0; i < participant.fragments.size(); ++i) {
      if (!shares[p][i]) continue;
      const Fragment& fragment = participant.fragments[i];
      TITAN_ASSIGN_OR_RETURN(const Hash128 part, FragmentDigest(placement.tensors[fragment.tensor],
                                                                fragment, slots[p]));
      sum += part;
    }
  }
  return sum;
}

struct Counts {
  uint64_t direct = 0, over_read = 0, pack = 0, merged = 0, digests = 0;
};

void CheckPair(uint64_t seed, Counts* counts) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const std::vector<TensorSpec> tensors = testing::RandomTensors(random);
  const Placement from = RandomPlacement(random, tensors);
  const Placement to = RandomPlacement(random, tensors);
  const CostModel costs = RandomCosts(random);
  const auto plan = MakePlan(from, to, costs);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto sources = FilledSlots(from, kSourceFiller);
  std::vector<std::vector<std::byte>> slots;
  for (size_t p = 0; p < to.participants.size(); ++p) {
    std::vector<std::byte> slot(to.participants[p].slot_bytes, kUntouched);
    for (const Region& region : plan->regions[p]) {
      const Status done = CarryOut(random, region, sources[region.source], slot);
      ASSERT_TRUE(done.ok()) << done;
      counts->merged += region.loops.empty();
    }
    ASSERT_TRUE(HoldsItsSlice(to, p, slot)) << "participant " << p;
    slots.push_back(std::move(slot));
  }
  counts->direct += plan->stats.direct_regions;
  counts->over_read += plan->stats.over_read_regions;
  counts->pack += plan->stats.pack_regions;
  const Hash128 whole = WholeDigest(tensors);
  for (const auto& sum : {SumOfParts(from, sources), SumOfParts(to, slots)}) {
    if (!sum.ok()) continue;
    ASSERT_EQ(ToHex(*sum), ToHex(whole));
    ++counts->digests;
  }
}

TEST(PlanPropertyTest, EqualsGatherAndSliceForTenThousandPairsOfLayouts) {
  const char* rounds = std::getenv("TITAN_RESHARD_PAIRS");
  const uint64_t pairs =
      rounds != nullptr ? std::strtoull(rounds, nullptr, 10) : Rounds<uint64_t>(10'000, 500);
  Counts counts;
  for (uint64_t seed = 1; seed <= pairs; ++seed) {
    CheckPair(seed, &counts);
    if (HasFatalFailure()) return;
  }
  // Every kind of case was met.
  EXPECT_GT(counts.direct, pairs);
  EXPECT_GT(counts.over_read, pairs / 20);
  EXPECT_GT(counts.pack, pairs / 20);
  EXPECT_GT(counts.digests, pairs / 4);
}

TEST(PlanPropertyTest, EqualInputsGiveEqualPlansAndDigests) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::vector<Plan> plans;
    for (int round = 0; round < 2; ++round) {
      Random random(seed);
      const auto tensors = testing::RandomTensors(random);
      const Placement from = RandomPlacement(random, tensors);
      const Placement to = RandomPlacement(random, tensors);
      auto plan = MakePlan(from, to, CostModel{});
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->source_digest, DigestOf(from));
      plans.push_back(*std::move(plan));
    }
    EXPECT_EQ(plans[0], plans[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace titan::weightstore::reshard
