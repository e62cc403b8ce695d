// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/linear.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/kernels/dot.h"
#include "core/kernels/isa.h"
#include "core/kernels/panels.h"
#include "core/kernels/tile.h"

namespace titan::kernels {
namespace {

using internal::RowTiles;
using internal::Scratch;
using internal::ScratchFloats;
using internal::TileKernels;

// Blocking for a 1 MiB second-level cache; it decides speed only. A block of packed rows takes
// about half of it; a panel of up to kWholeChain steps (256 KiB) streams through the rest. Longer
// chains are cut into kChainPart steps with their accumulators parked in memory.
constexpr int64_t kRowBlockFloats = 128 * 1024;
constexpr int64_t kWholeChain = 2048;
constexpr int64_t kChainPart = 1024;  // even
constexpr int64_t kLongChainRows = 98;
constexpr int kTasksPerThread = 6;

// Panels of one task so that every thread gets several tasks of each row block.
int64_t PanelsPerTask(const Pool& pool, int64_t panels, int64_t row_blocks) {
  if (pool.size() == 1) return panels;
  const int64_t wanted = static_cast<int64_t>(pool.size()) * kTasksPerThread;
  const int64_t groups = std::max<int64_t>(1, (wanted + row_blocks - 1) / row_blocks);
  return std::max<int64_t>(1, panels / groups);
}

int ColumnsOf(int64_t panel, int64_t n) {
  return static_cast<int>(std::min(kPanelColumns, n - panel * kPanelColumns));
}

// The 32 bias values of a panel; `padded` holds those of a last panel that is not full.
const float* BiasOf(const float* bias, int64_t panel, int columns, float* padded) {
  if (bias == nullptr) return nullptr;
  if (columns == kPanelColumns) return bias + panel * kPanelColumns;
  std::fill(padded, padded + kPanelColumns, 0.0f);
  std::memcpy(padded, bias + panel * kPanelColumns, static_cast<size_t>(columns) * sizeof(float));
  return padded;
}

template <typename W, typename A>
struct LinearCall {
  const internal::WeightTile<W, A>& tile;
  RowTiles tiles;
  const A* packed;  // [tile][RowDepth(k)][rows of tile]
  const W* panels;
  int64_t n, k;
  int leaves;
  const float* bias;
  float* out;
  int64_t ldo;

  const W* panel(int64_t p) const {
    return panels + p * kPanelColumns * PanelDepth(kElementOf<W>, k);
  }
  // Rows from `first` on, which starts a tile of `rows` rows, from step k0 on.
  const A* rows_from(int64_t first, int64_t rows = 0, int64_t k0 = 0) const {
    return packed + first * internal::RowDepth<A>(k) + internal::RowDepth<A>(k0) * rows;
  }
};

// Tiles [t0, t1) x panels [p0, p1), each chain in one go.
template <typename W, typename A>
void ShortChains(const LinearCall<W, A>& call, int64_t t0, int64_t t1, int64_t p0, int64_t p1) {
  float padded[kPanelColumns];
  for (int64_t p = p0; p < p1; ++p) {
    const int columns = ColumnsOf(p, call.n);
    const float* bias = BiasOf(call.bias, p, columns, padded);
    const W* panel = call.panel(p);
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t first = call.tiles.begin(t);
      call.tile.output(call.tiles.rows(t), call.rows_from(first), panel, call.k, call.leaves, bias,
                       call.out + first * call.ldo + p * kPanelColumns, call.ldo, columns,
                       internal::AheadOf(panel, kPanelColumns * PanelDepth(kElementOf<W>, call.k),
                                         t - t0, t1 - t0));
    }
  }
}

// The same for long chains of one panel: parts of kChainPart steps, all tiles for each part.
template <typename W, typename A>
void LongChains(const LinearCall<W, A>& call, int64_t t0, int64_t t1, int64_t p) {
  const int64_t first_row = call.tiles.begin(t0);
  const int64_t rows = call.tiles.begin(t1 - 1) + call.tiles.rows(t1 - 1) - first_row;
  const int64_t block = rows * kPanelColumns;
  // Level 0..2: finished subtrees of 1, 2, 4 leaves; level 3: the open chains.
  float* levels = ScratchFloats(Scratch::kPartial, 4 * block);
  float* open = levels + 3 * block;
  const int64_t length = call.k / call.leaves;
  const W* panel = call.panel(p);
  for (int leaf = 0; leaf < call.leaves; ++leaf) {
    for (int64_t part = 0; part < length; part += kChainPart) {
      const int64_t steps = std::min(kChainPart, length - part);
      const int64_t k0 = leaf * length + part;
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t first = call.tiles.begin(t);
        const int tile_rows = call.tiles.rows(t);
        call.tile.chain(tile_rows, call.rows_from(first, tile_rows, k0), panel + k0 * kPanelColumns,
                        steps, part > 0, open + (first - first_row) * kPanelColumns, kPanelColumns);
      }
    }
    int level = 0;
    for (int bits = leaf; (bits & 1) != 0; bits >>= 1, ++level) {
      const float* left = levels + level * block;
      for (int64_t i = 0; i < block; ++i) open[i] = left[i] + open[i];
    }
    if (leaf + 1 < call.leaves) std::copy(open, open + block, levels + level * block);
  }
  const int columns = ColumnsOf(p, call.n);
  float padded[kPanelColumns];
  const float* bias = BiasOf(call.bias, p, columns, padded);
  for (int64_t r = 0; r < rows; ++r) {
    float* out = call.out + (first_row + r) * call.ldo + p * kPanelColumns;
    const float* in = open + r * kPanelColumns;
    for (int j = 0; j < columns; ++j) out[j] = bias == nullptr ? in[j] : in[j] + bias[j];
  }
}

template <typename W, typename A>
void LinearOf(Pool& pool, const internal::WeightTile<W, A>& tile, Inputs inputs, const float* x,
              int64_t ldx, int64_t m, const W* panels, int64_t n, int64_t k, int leaves,
              const float* bias, float* out, int64_t ldo) {
#ifdef TITAN_PERTURB_CHAIN_ORDER
  // The library that tests link to see parity fail: large calls cut their chains elsewhere.
  if (m > internal::kMaxTileRows) leaves = leaves > 1 ? 1 : (k % 4 == 0 ? 2 : 1);
#endif
  const RowTiles tiles(m, tile.max_rows);
  const int64_t depth = internal::RowDepth<A>(k);
  const A* packed = nullptr;
  if constexpr (std::is_same_v<A, float>) packed = x;
  if (m > 1 || inputs == Inputs::kBf16) {
    A* buffer = internal::ScratchRows<A>(m * depth);
    const auto pack = [&](int t) {
      const int64_t first = tiles.begin(t);
      internal::PackRowsAs(inputs, x + first * ldx, ldx, tiles.rows(t), k, buffer + first * depth);
    };
    if (tiles.count() == 1) {
      pack(0);
    } else {
      pool.Run(static_cast<int>(tiles.count()), pack);
    }
    packed = buffer;
  }
  const LinearCall<W, A> call{tile, tiles, packed, panels, n, k, leaves, bias, out, ldo};
  const int64_t panel_count = PanelCount(n);
  const bool whole = k <= kWholeChain || tiles.count() == 1;
  const int64_t block_rows = whole ? kRowBlockFloats / depth : kLongChainRows;
  const int64_t block_tiles = std::max<int64_t>(1, block_rows / tile.max_rows);
  const int64_t row_blocks = (tiles.count() + block_tiles - 1) / block_tiles;
  const int64_t group = PanelsPerTask(pool, panel_count, row_blocks);
  const int64_t groups = (panel_count + group - 1) / group;
  pool.Run(static_cast<int>(row_blocks * groups), [&](int task) {
    const int64_t t0 = task / groups * block_tiles;
    const int64_t t1 = std::min(tiles.count(), t0 + block_tiles);
    const int64_t p0 = task % groups * group;
    const int64_t p1 = std::min(panel_count, p0 + group);
    if (whole) {
      ShortChains(call, t0, t1, p0, p1);
    } else {
      for (int64_t p = p0; p < p1; ++p) LongChains(call, t0, t1, p);
    }
  });
}

}  // namespace

void Linear(Pool& pool, const float* x, int64_t ldx, int64_t m, ConstPanels panels, int64_t n,
            int64_t k, int leaves, const float* bias, float* out, int64_t ldo, Inputs inputs) {
  TITAN_CHECK(leaves == 1 || leaves == 2 || leaves == 4 || leaves == 8);
  TITAN_CHECK(k > 0 && k % leaves == 0);
  TITAN_CHECK(panels.element() == Element::kF32 || leaves == 1 || k / leaves % 2 == 0);
  TITAN_CHECK(inputs == Inputs::kF32 || panels.element() == Element::kBf16);
  if (m == 0 || n == 0) return;
  internal::VisitTile(panels, inputs, [&](const auto& tile, const auto* data) {
    LinearOf(pool, tile, inputs, x, ldx, m, data, n, k, leaves, bias, out, ldo);
  });
}

void LinearWeightGradient(Pool& pool, const float* x, int64_t ldx, const float* dy, int64_t ldy,
                          int64_t m, int64_t n, int64_t k, float* panels_accumulator,
                          Inputs inputs) {
  if (m == 0 || n == 0 || k == 0) return;
  const TileKernels& tile = internal::CurrentTileKernels();
  const RowTiles tiles(k, tile.f32.max_rows);  // rows of a tile are columns of x
  const int64_t panel_count = PanelCount(n);
  float* rows = ScratchFloats(Scratch::kRows, k * m);                    // [tile][m][rows]
  float* dy_panels = ScratchFloats(Scratch::kPanel, PanelFloats(n, m));  // [panel][m][32]
  pool.Run(static_cast<int>(tiles.count() + panel_count), [&](int task) {
    if (task < tiles.count()) {
      const int64_t first = tiles.begin(task);
      internal::PackColumns(x + first, ldx, tiles.rows(task), m, rows + first * m, inputs);
    } else {
      const int64_t p = task - tiles.count();
      internal::PackPanelRows(dy + p * kPanelColumns, ldy, ColumnsOf(p, n), m,
                              dy_panels + p * kPanelColumns * m);
    }
  });
  const int64_t block_tiles = std::max<int64_t>(1, kRowBlockFloats / m / tile.f32.max_rows);
  const int64_t row_blocks = (tiles.count() + block_tiles - 1) / block_tiles;
  const int64_t group = PanelsPerTask(pool, panel_count, row_blocks);
  const int64_t groups = (panel_count + group - 1) / group;
  pool.Run(static_cast<int>(row_blocks * groups), [&](int task) {
    const int64_t t0 = task / groups * block_tiles;
    const int64_t t1 = std::min(tiles.count(), t0 + block_tiles);
    const int64_t p1 = std::min(panel_count, (task % groups + 1) * group);
    for (int64_t p = task % groups * group; p < p1; ++p) {
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t first = tiles.begin(t);
        tile.accumulate(tiles.rows(t), rows + first * m, dy_panels + p * kPanelColumns * m, m,
                        panels_accumulator + (p * k + first) * kPanelColumns, kPanelColumns,
                        ColumnsOf(p, n));
      }
    }
  });
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
