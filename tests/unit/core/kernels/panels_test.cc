// SPDX-License-Identifier: Apache-2.0
//
// The execution layout holds every element at PanelIndex, pads with +0, and its conversions move
// bits.
#include "core/kernels/panels.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "tests/support/kernel_data.h"

namespace titan::kernels {
namespace {

using titan::testing::IsPoison;
using titan::testing::PoisonedFloats;
using titan::testing::SameBits;
using titan::testing::WideFloats;

struct Size {
  int64_t n, k;
};
constexpr Size kSizes[] = {{1, 1}, {31, 7}, {32, 32}, {33, 65}, {96, 64}, {71, 130}, {200, 3}};

TEST(PanelsTest, PackPutsEveryElementAtItsIndexAndPadsWithPlusZero) {
  for (const auto [n, k] : kSizes) {
    const std::vector<float> rows = WideFloats(n * k, 1);
    std::vector<float> storage = PoisonedFloats(PanelFloats(n, k) + 2);
    Pool pool(2);
    PackPanels(pool, rows.data(), n, k, storage.data() + 1);
    EXPECT_TRUE(IsPoison(storage.front()) && IsPoison(storage.back()));
    for (int64_t row = 0; row < PanelCount(n) * kPanelColumns; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const float got = storage[static_cast<size_t>(1 + PanelIndex(k, row, i))];
        const float wanted = row < n ? rows[static_cast<size_t>(row * k + i)] : 0.0f;
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(wanted)) << row << " " << i;
      }
    }
  }
}

TEST(PanelsTest, UnpackIsTheInverseAndGatherRowReadsOneRow) {
  for (const auto [n, k] : kSizes) {
    const std::vector<float> rows = WideFloats(n * k, 2);
    std::vector<float> panels(static_cast<size_t>(PanelFloats(n, k)));
    std::vector<float> back = PoisonedFloats(n * k + 1), row(static_cast<size_t>(k));
    Pool pool(3);
    PackPanels(pool, rows.data(), n, k, panels.data());
    UnpackPanels(pool, panels.data(), n, k, back.data());
    EXPECT_TRUE(SameBits(back.data(), rows.data(), n * k));
    EXPECT_TRUE(IsPoison(back.back()));
    for (int64_t r = 0; r < n; ++r) {
      GatherRow(panels.data(), n, k, r, row.data());
      EXPECT_TRUE(SameBits(row.data(), rows.data() + r * k, k));
    }
  }
}

TEST(PanelsTest, TransposeEqualsPackingTheTransposedRowsPaddingIncluded) {
  for (const auto [n, k] : kSizes) {
    const std::vector<float> rows = WideFloats(n * k, 3);
    std::vector<float> columns(rows.size()), panels(static_cast<size_t>(PanelFloats(n, k)));
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t i = 0; i < k; ++i) columns[i * n + r] = rows[r * k + i];
    }
    Pool pool(2);
    PackPanels(pool, rows.data(), n, k, panels.data());
    std::vector<float> got = PoisonedFloats(PanelFloats(k, n) + 1), wanted(got.size() - 1);
    TransposePanels(pool, panels.data(), n, k, got.data());
    PackPanels(pool, columns.data(), k, n, wanted.data());
    EXPECT_TRUE(SameBits(got.data(), wanted.data(), PanelFloats(k, n))) << n << " " << k;
    EXPECT_TRUE(IsPoison(got.back()));
  }
}

}  // namespace
}  // namespace titan::kernels
