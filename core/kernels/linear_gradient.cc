// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/blocking.h"
#include "core/kernels/dot.h"
#include "core/kernels/linear.h"
#include "core/kernels/panels.h"
#include "core/kernels/tile.h"

namespace titan::kernels {

using internal::CurrentBlocking;
using internal::RowTiles;
using internal::Scratch;
using internal::ScratchFloats;
using internal::TileKernels;

namespace {

// Tasks that every thread gets, at least, if there are several threads.
constexpr int64_t kGradientTasks = 8;

}  // namespace

void LinearWeightGradient(Pool& pool, const LinearRows& rows,
                          std::span<const LinearGradient> gradients) {
  const int64_t m = rows.m, k = rows.k;
  TITAN_CHECK(rows.made == nullptr);
  if (m == 0 || k == 0) return;
  // The panels of all matrices, numbered through: of which, and which of it.
  struct Place {
    const LinearGradient* gradient;
    int64_t panel;
    int columns() const {
      return static_cast<int>(std::min(kPanelColumns, gradient->n - panel * kPanelColumns));
    }
  };
  std::vector<Place> places;
  for (const LinearGradient& gradient : gradients) {
    for (int64_t p = 0; p < PanelCount(gradient.n); ++p) places.push_back({&gradient, p});
  }
  const int64_t panel_count = static_cast<int64_t>(places.size());
  if (panel_count == 0) return;
  const TileKernels& tile = internal::CurrentTileKernels();
  const RowTiles tiles(k, tile.f32.max_rows);            // rows of a tile are columns of x
  float* packed = ScratchFloats(Scratch::kRows, k * m);  // [tile][m][rows]
  float* dy_panels =                                     // [panel][m][32]
      ScratchFloats(Scratch::kPanel, panel_count * kPanelColumns * m);
  pool.Run(static_cast<int>(tiles.count() + panel_count), [&](int task) {
    if (task < tiles.count()) {
      const int64_t first = tiles.begin(task);
      internal::PackColumns(rows.x + first, rows.ldx, tiles.rows(task), m, packed + first * m,
                            rows.inputs);
    } else {
      const int64_t p = task - tiles.count();
      const Place& place = places[static_cast<size_t>(p)];
      internal::PackPanelRows(place.gradient->dy + place.panel * kPanelColumns, place.gradient->ldy,
                              place.columns(), m, dy_panels + p * kPanelColumns * m);
    }
  });
  const int64_t block_tiles =
      std::max<int64_t>(1, CurrentBlocking().row_block_floats / m / tile.f32.max_rows);
  const int64_t row_blocks = (tiles.count() + block_tiles - 1) / block_tiles;
  const int64_t wanted =
      pool.size() == 1 ? 1 : (pool.size() * kGradientTasks + row_blocks - 1) / row_blocks;
  const int64_t group = std::max<int64_t>(1, panel_count / wanted);
  const int64_t groups = (panel_count + group - 1) / group;
  pool.Run(static_cast<int>(row_blocks * groups), [&](int task) {
    const int64_t t0 = task / groups * block_tiles;
    const int64_t t1 = std::min(tiles.count(), t0 + block_tiles);
    const int64_t p1 = std::min(panel_count, (task % groups + 1) * group);
    for (int64_t p = task % groups * group; p < p1; ++p) {
      const Place& place = places[static_cast<size_t>(p)];
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t first = tiles.begin(t);
        tile.accumulate(
            tiles.rows(t), packed + first * m, dy_panels + p * kPanelColumns * m, m,
            place.gradient->panels_accumulator + (place.panel * k + first) * kPanelColumns,
            kPanelColumns, place.columns());
      }
    }
  });
}

int64_t LinearWeightGradientScratchFloats(int64_t m, int64_t k, int64_t n) {
  return m * (k + PanelCount(n) * kPanelColumns);
}

void LinearBiasGradient(Pool& pool, const float* dy, int64_t ldy, int64_t m, int64_t n,
                        float* accumulator) {
  constexpr int64_t kColumns = 64;  // of one task; the inner loop's lanes are columns
  if (m == 0) return;
  pool.Run(static_cast<int>((n + kColumns - 1) / kColumns), [&](int task) {
    const int64_t first = task * kColumns;
    const int64_t columns = std::min(kColumns, n - first);
    float chain[kColumns] = {};
    for (int64_t row = 0; row < m; ++row) {
      const float* in = dy + row * ldy + first;
      for (int64_t j = 0; j < columns; ++j) chain[j] = chain[j] + in[j];
    }
    for (int64_t j = 0; j < columns; ++j)
      accumulator[first + j] = accumulator[first + j] + chain[j];
  });
}

}  // namespace titan::kernels
