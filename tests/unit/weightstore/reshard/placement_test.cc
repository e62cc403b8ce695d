// SPDX-License-Identifier: Apache-2.0
//
// Goal: a placement that is wrong is refused by the name of what is wrong; meshes cut as stated.
// Method: small placements with one fault each; byte overlaps of strided fragments against a
// bitmap.
#include "weightstore/reshard/placement.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/reshard_layouts.h"
#include "weightstore/reshard/boxes.h"
#include "weightstore/reshard/cuts.h"
#include "weightstore/reshard/fragment_digest.h"

namespace titan::weightstore::reshard {
namespace {

using testing::Random;

TensorSpec Tensor(std::vector<int64_t> shape, DType dtype = DType::kF32) {
  return {"w", std::move(shape), dtype, Layout::kRows};
}

Placement OneFragment(TensorSpec tensor, Fragment fragment, uint64_t slot_bytes = 4096) {
  return {{std::move(tensor)}, {{slot_bytes, {std::move(fragment)}}}};
}

::testing::AssertionResult IsRefused(const Status& status, std::string_view reason) {
  if (status.code() == StatusCode::kInvalidArgument && MessageOf(status).starts_with(reason)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "wanted " << reason << ", got " << status;
}

TEST(PlacementTest, RefusesByName) {
  EXPECT_TRUE(Validate(OneFragment(Tensor({4, 6}), {0, {0, 0}, {4, 6}, 0, {}})).ok());
  EXPECT_TRUE(
      IsRefused(Validate(OneFragment(Tensor({4, 6}), {1, {0, 0}, {4, 6}, 0, {}})), "shape"));
  EXPECT_TRUE(IsRefused(Validate(OneFragment(Tensor({4, 6}), {0, {0}, {4}, 0, {}})), "shape"));
  EXPECT_TRUE(
      IsRefused(Validate(OneFragment(Tensor({4, 6}), {0, {1, 0}, {4, 6}, 0, {}})), "shape"));
  EXPECT_TRUE(
      IsRefused(Validate(OneFragment(Tensor({4, 6}), {0, {-1, 0}, {2, 6}, 0, {}})), "shape"));
  EXPECT_TRUE(
      IsRefused(Validate(OneFragment(Tensor({4, -1}), {0, {0, 0}, {0, 0}, 0, {}})), "shape"));
  EXPECT_TRUE(
      IsRefused(Validate(OneFragment(Tensor({4, 6}), {0, {0, 0}, {4, 6}, 0, {}}, 95)), "bounds"));
  EXPECT_TRUE(
      IsRefused(Validate(OneFragment(Tensor({4, 6}), {0, {0, 0}, {4, 6}, 0, {8, 4}})), "overlap"));
  EXPECT_TRUE(IsRefused(Validate(OneFragment(Tensor({4, 6}), {0, {0, 0}, {4, 6}, 0, {24, 4, 1}})),
                        "shape"));
  const int64_t huge = int64_t{1} << 40;
  EXPECT_TRUE(IsRefused(Validate(OneFragment(Tensor({huge, huge}), {0, {0, 0}, {0, 0}, 0, {}})),
                        "overflow"));
  EXPECT_TRUE(
      IsRefused(Validate(OneFragment(Tensor({huge, huge, 0}), {0, {}, {}, 0, {}})), "overflow"));
  EXPECT_TRUE(IsRefused(
      Validate(OneFragment(Tensor({4, 6}), {0, {0, 0}, {4, 6}, 0, {uint64_t{1} << 62, 4}})),
      "overflow"));
  EXPECT_TRUE(IsRefused(
      Validate(OneFragment(Tensor({4, 6}),
                           {0, {0, 0}, {4, 6}, std::numeric_limits<uint64_t>::max() - 3, {}})),
      "overflow"));
  EXPECT_TRUE(
      IsRefused(Validate(OneFragment(Tensor({4, 6}), {0,
                                                      {std::numeric_limits<int64_t>::max(), 0},
                                                      {1, std::numeric_limits<int64_t>::max()},
                                                      0,
                                                      {}})),
                "shape"));
  Placement doubled = OneFragment(Tensor({4, 6}), {0, {0, 0}, {4, 6}, 0, {}});
  doubled.tensors.push_back(doubled.tensors[0]);
  EXPECT_TRUE(IsRefused(Validate(doubled), "shape"));
}

TEST(PlacementTest, RefusesOverlapsOfElementsAndOfBytes) {
  Placement placement = OneFragment(Tensor({4, 6}), {0, {0, 0}, {3, 6}, 0, {}});
  placement.participants[0].fragments.push_back({0, {2, 0}, {2, 6}, 1024, {}});
  EXPECT_TRUE(IsRefused(Validate(placement), "overlap"));  // row 2 twice in a slot
  placement.participants[0].fragments[1] = {0, {3, 0}, {1, 6}, 71, {}};
  EXPECT_TRUE(IsRefused(Validate(placement), "overlap"));  // byte 71 is row 2's
  placement.participants[0].fragments[1].slot_offset = 72;
  EXPECT_TRUE(Validate(placement).ok()) << Validate(placement);
  // Replicas are other participants' business.
  placement.participants.push_back(placement.participants[0]);
  EXPECT_TRUE(Validate(placement).ok());
}

TEST(PlacementTest, CoverageNamesTheFirstBoxThatIsMissing) {
  Placement placement = OneFragment(Tensor({4, 6}), {0, {0, 0}, {4, 3}, 0, {}});
  placement.participants[0].fragments.push_back({0, {1, 3}, {3, 3}, 1024, {}});
  const Status status = CheckCovers(placement);
  EXPECT_TRUE(IsRefused(status, "gap"));
  EXPECT_NE(MessageOf(status).find("'w'"), std::string::npos) << status;
  EXPECT_NE(MessageOf(status).find("[0:1, 3:6]"), std::string::npos) << status;
  placement.participants[0].fragments.push_back({0, {0, 3}, {1, 3}, 2048, {}});
  EXPECT_TRUE(CheckCovers(placement).ok());
}

TEST(PlacementTest, PanelsAreCutAtWholePanels) {
  TensorSpec tensor = {"w", {70, 5}, DType::kBf16, Layout::kPanels32K2};
  EXPECT_TRUE(Validate(OneFragment(tensor, {0, {64, 0}, {6, 5}, 0, {}})).ok());
  EXPECT_TRUE(Validate(OneFragment(tensor, {0, {32, 2}, {32, 2}, 0, {}})).ok());
  EXPECT_TRUE(Validate(OneFragment(tensor, {0, {70, 0}, {0, 5}, 0, {}})).ok());
  EXPECT_TRUE(IsRefused(Validate(OneFragment(tensor, {0, {16, 0}, {16, 5}, 0, {}})), "shape"));
  EXPECT_TRUE(IsRefused(Validate(OneFragment(tensor, {0, {0, 0}, {70, 3}, 0, {}})), "shape"));
  EXPECT_TRUE(IsRefused(Validate(OneFragment(tensor, {0, {0, 0}, {32, 5}, 0, {64, 4}})), "shape"));
  tensor.dtype = DType::kF32;
  EXPECT_TRUE(IsRefused(Validate(OneFragment(tensor, {0, {0, 0}, {70, 5}, 0, {}})), "shape"));
}

// Random pairs of strided fragments: the answer of SharesBytes is that of a bitmap.
TEST(PlacementTest, SharedBytesOfStridedFragmentsAreFoundExactly) {
  int sharing = 0, apart = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    Random random(seed);
    const TensorSpec tensor = {"w", {8, 8, 8}, DType::kF16, Layout::kRows};
    std::vector<uint64_t> shared_strides;
    std::vector<GridFragment> placed(2);
    std::vector<std::vector<bool>> used(2, std::vector<bool>(4096, false));
    for (size_t i = 0; i < 2; ++i) {
      Fragment fragment{0, {0, 0, 0}, {}, random.Below(60), {}};
      for (int d = 0; d < 3; ++d) fragment.shape.push_back(random.Between(1, 4));
      const uint64_t inner = 2 * (1 + random.Below(3));
      fragment.strides = {0, inner * (4 + random.Below(3)), inner};
      fragment.strides[0] = fragment.strides[1] * (4 + random.Below(2));
      if (random.OneIn(2) && i == 1) fragment.strides = shared_strides;
      shared_strides = fragment.strides;
      ASSERT_TRUE(PlaceOnGrid(tensor, fragment, 4096, "test", &placed[i]).ok());
      testing::EachElement(tensor, fragment, [&](uint64_t, uint64_t offset) {
        used[i][offset] = used[i][offset + 1] = true;
      });
    }
    bool wanted = false;
    for (size_t b = 0; b < 4096; ++b) wanted |= used[0][b] && used[1][b];
    const auto shares = SharesBytes(placed[0], 2, placed[1], 2);
    ASSERT_TRUE(shares.ok()) << shares.status();
    ASSERT_EQ(*shares, wanted) << "seed " << seed;
    (wanted ? sharing : apart)++;
  }
  EXPECT_GT(sharing, 200);
  EXPECT_GT(apart, 200);
}

TEST(CutsTest, UnevenAndEmptyShardsAsTorchChunks) {
  MeshCut cut;
  cut.tensors = {Tensor({5, 2})};
  cut.mesh = {4};
  cut.rules = {{{.kind = AxisRule::Kind::kShard}}};
  const auto placement = CutByMesh(cut);
  ASSERT_TRUE(placement.ok()) << placement.status();
  std::vector<int64_t> rows;
  for (const Participant& p : placement->participants) rows.push_back(p.fragments[0].shape[0]);
  EXPECT_EQ(rows, (std::vector<int64_t>{2, 2, 1, 0}));
  EXPECT_TRUE(CheckCovers(*placement).ok());
}

TEST(CutsTest, TwoAxesHeadsAndSharedKeyHeads) {
  MeshCut cut;  // FSDP 2 x TP 4; 8 query heads of 4 rows, 2 key heads
  cut.tensors = {{"q", {32, 6}, DType::kBf16, Layout::kRows},
                 {"k", {8, 6}, DType::kBf16, Layout::kRows}};
  cut.mesh = {2, 4};
  const AxisRule columns = {.kind = AxisRule::Kind::kShard, .dimension = 1};
  cut.rules = {{columns, {.kind = AxisRule::Kind::kShard, .granule = 4}},
               {columns, {.kind = AxisRule::Kind::kShard, .granule = 4, .pieces = 2}}};
  cut.fused = {{{0, 1}, 0, false}};
  const auto placement = CutByMesh(cut);
  ASSERT_TRUE(placement.ok()) << placement.status();
  ASSERT_EQ(placement->participants.size(), 8u);
  const Participant& rank = placement->participants[6];  // coordinates 1, 2
  EXPECT_EQ(rank.fragments[0].begin, (std::vector<int64_t>{16, 3}));
  EXPECT_EQ(rank.fragments[0].shape, (std::vector<int64_t>{8, 3}));
  EXPECT_EQ(rank.fragments[1].begin, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(rank.fragments[1].shape, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(rank.fragments[1].slot_offset, 8u * 3 * 2);  // right behind q: one fused matrix
  EXPECT_EQ(rank.slot_bytes, 12u * 3 * 2);
}

TEST(CutsTest, RefusesWhatDoesNotFit) {
  MeshCut cut;
  cut.tensors = {Tensor({4, 4}), {"v", {6, 4}, DType::kF32, Layout::kRows}};
  cut.mesh = {2};
  cut.rules = {{{.kind = AxisRule::Kind::kShard}}, {{.kind = AxisRule::Kind::kShard}}};
  cut.fused = {{{0, 1}, 1, false}};
  EXPECT_TRUE(IsRefused(CutByMesh(cut).status(), "fused"));  // 2 and 3 rows beside each other
  cut.fused = {{{0, 1}, 0, true}};
  EXPECT_TRUE(IsRefused(CutByMesh(cut).status(), "fused"));
  cut.fused = {{{0, 0}, 0, false}};
  EXPECT_TRUE(IsRefused(CutByMesh(cut).status(), "fused"));
  cut.fused = {{{0, 1}, 0, false}};
  EXPECT_TRUE(CutByMesh(cut).ok());
  cut.rules[0][0].dimension = 2;
  EXPECT_TRUE(IsRefused(CutByMesh(cut).status(), "rules of tensor 'w'"));
  cut.rules[0][0] = {.kind = AxisRule::Kind::kOwn, .owner = 2};
  EXPECT_TRUE(IsRefused(CutByMesh(cut).status(), "rules of tensor 'w'"));
  cut.mesh = {0};
  EXPECT_TRUE(IsRefused(CutByMesh(cut).status(), "mesh"));
}

TEST(FragmentDigestTest, RefusesACutThroughARun) {
  const TensorSpec tensor = {"w", {2, 600}, DType::kF32, Layout::kRows};
  const std::vector<std::byte> slot(4800);
  EXPECT_TRUE(FragmentDigest(tensor, {0, {0, 256}, {2, 344}, 0, {}}, slot).ok());
  EXPECT_EQ(FragmentDigest(tensor, {0, {0, 0}, {2, 300}, 0, {}}, slot).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(FragmentDigest(tensor, {0, {0, 0}, {2, 600}, 4, {}}, slot).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::weightstore::reshard
