// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/linear.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/blocking.h"
#include "core/kernels/dot.h"
#include "core/kernels/isa.h"
#include "core/kernels/panels.h"
#include "core/kernels/tile.h"

namespace titan::kernels {
namespace {

using internal::CurrentBlocking;
using internal::RowTiles;
using internal::Scratch;
using internal::ScratchFloats;
using internal::TileKernels;

// Panels of one task so that every thread gets several tasks of each row block.
int64_t PanelsPerTask(const Pool& pool, int64_t panels, int64_t row_blocks) {
  if (pool.size() == 1) return panels;
  const int64_t wanted = pool.size() * CurrentBlocking().tasks_per_thread;
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

// Packed rows times one matrix. The panels of a call's products are numbered through; those of this
// one start at first_panel. Where they overlap the products are terms of a sum, in their order.
template <typename W, typename A>
struct Product {
  const A* packed;  // [tile][RowDepth(k)][rows of tile]
  int64_t k;
  const W* panels;
  int64_t n;
  int leaves;
  const float* bias;
  const float* addend;
  float* out;
  int64_t ldo;
  int64_t first_panel;

  const W* panel(int64_t p) const {
    return panels + p * kPanelColumns * PanelDepth(kElementOf<W>, k);
  }
  // Rows from `first` on, which starts a tile of `rows` rows, from step k0 on.
  const A* rows_from(int64_t first, int64_t rows = 0, int64_t k0 = 0) const {
    return packed + first * internal::RowDepth<A>(k) + internal::RowDepth<A>(k0) * rows;
  }
  // Each chain in one go; else in parts.
  bool whole(const RowTiles& tiles) const {
    return k <= CurrentBlocking().whole_chain || tiles.count() == 1;
  }
};

// out[rows][columns] (stride ldo) = addend (likewise) + in[rows][32].
void AddRows(const float* in, int64_t rows, int columns, const float* addend, float* out,
             int64_t ldo) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int j = 0; j < columns; ++j) {
      out[r * ldo + j] = addend[r * ldo + j] + in[r * kPanelColumns + j];
    }
  }
}

// Tiles [t0, t1) x panels [p0, p1) of the product, each chain in one go.
template <typename W, typename A>
void ShortChains(const internal::WeightTile<W, A>& tile, const RowTiles& tiles,
                 const Product<W, A>& product, int64_t t0, int64_t t1, int64_t p0, int64_t p1) {
  float padded[kPanelColumns];
  alignas(64) float sums[internal::kMaxTileRows * kPanelColumns];
  for (int64_t p = p0; p < p1; ++p) {
    const int columns = ColumnsOf(p, product.n);
    const float* bias = BiasOf(product.bias, p, columns, padded);
    const W* panel = product.panel(p);
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t first = tiles.begin(t), at = first * product.ldo + p * kPanelColumns;
      const int rows = tiles.rows(t);
      const auto ahead = internal::AheadOf(
          panel, kPanelColumns * PanelDepth(kElementOf<W>, product.k), t - t0, t1 - t0);
      if (product.addend == nullptr) {
        tile.output(rows, product.rows_from(first), panel, product.k, product.leaves, bias,
                    product.out + at, product.ldo, columns, ahead);
        continue;
      }
      tile.output(rows, product.rows_from(first), panel, product.k, product.leaves, bias, sums,
                  kPanelColumns, kPanelColumns, ahead);
      AddRows(sums, rows, columns, product.addend + at, product.out + at, product.ldo);
    }
  }
}

// The same for long chains of one panel: parts of chain_part steps, all tiles for each part.
template <typename W, typename A>
void LongChains(const internal::WeightTile<W, A>& tile, const RowTiles& tiles,
                const Product<W, A>& product, int64_t t0, int64_t t1, int64_t p) {
  const int64_t first_row = tiles.begin(t0);
  const int64_t rows = tiles.begin(t1 - 1) + tiles.rows(t1 - 1) - first_row;
  const int64_t block = rows * kPanelColumns;
  // Level 0..2: finished subtrees of 1, 2, 4 leaves; level 3: the open chains.
  float* levels = ScratchFloats(Scratch::kPartial, 4 * block);
  float* open = levels + 3 * block;
  const int64_t length = product.k / product.leaves;
  const int64_t chain_part = CurrentBlocking().chain_part;
  const W* panel = product.panel(p);
  for (int leaf = 0; leaf < product.leaves; ++leaf) {
    for (int64_t part = 0; part < length; part += chain_part) {
      const int64_t steps = std::min(chain_part, length - part);
      const int64_t k0 = leaf * length + part;
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t first = tiles.begin(t);
        const int tile_rows = tiles.rows(t);
        tile.chain(tile_rows, product.rows_from(first, tile_rows, k0), panel + k0 * kPanelColumns,
                   steps, part > 0, open + (first - first_row) * kPanelColumns, kPanelColumns);
      }
    }
    int level = 0;
    for (int bits = leaf; (bits & 1) != 0; bits >>= 1, ++level) {
      const float* left = levels + level * block;
      for (int64_t i = 0; i < block; ++i) open[i] = left[i] + open[i];
    }
    if (leaf + 1 < product.leaves) std::copy(open, open + block, levels + level * block);
  }
  const int columns = ColumnsOf(p, product.n);
  const int64_t at = first_row * product.ldo + p * kPanelColumns;
  if (product.bias != nullptr) {
    float padded[kPanelColumns];
    const float* bias = BiasOf(product.bias, p, columns, padded);
    for (int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < columns; ++j) {
        open[r * kPanelColumns + j] = open[r * kPanelColumns + j] + bias[j];
      }
    }
  }
  if (product.addend != nullptr) {
    AddRows(open, rows, columns, product.addend + at, product.out + at, product.ldo);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(product.out + at + r * product.ldo, open + r * kPanelColumns,
                static_cast<size_t>(columns) * sizeof(float));
  }
}

// All products over all their panels, which are `panel_count` together.
template <typename W, typename A>
void Multiply(Pool& pool, const internal::WeightTile<W, A>& tile, const RowTiles& tiles,
              std::span<const Product<W, A>> products, int64_t panel_count) {
  const internal::Blocking blocking = CurrentBlocking();
  int64_t block_rows = tiles.begin(tiles.count());
  for (const Product<W, A>& product : products) {
    const int64_t rows = product.whole(tiles)
                             ? blocking.row_block_floats / internal::RowDepth<A>(product.k)
                             : blocking.long_chain_rows;
    block_rows = std::min(block_rows, rows);
  }
  const int64_t block_tiles = std::max<int64_t>(1, block_rows / tile.max_rows);
  const int64_t row_blocks = (tiles.count() + block_tiles - 1) / block_tiles;
  const int64_t group = PanelsPerTask(pool, panel_count, row_blocks);
  const int64_t groups = (panel_count + group - 1) / group;
  pool.Run(static_cast<int>(row_blocks * groups), [&](int task) {
    const int64_t t0 = task / groups * block_tiles;
    const int64_t t1 = std::min(tiles.count(), t0 + block_tiles);
    const int64_t first = task % groups * group, last = std::min(panel_count, first + group);
    for (const Product<W, A>& product : products) {
      const int64_t p0 = std::max<int64_t>(0, first - product.first_panel);
      const int64_t p1 = std::min(PanelCount(product.n), last - product.first_panel);
      if (product.whole(tiles)) {
        ShortChains(tile, tiles, product, t0, t1, p0, p1);
      } else {
        for (int64_t p = p0; p < p1; ++p) LongChains(tile, tiles, product, t0, t1, p);
      }
    }
  });
}

// Packs all the rows, which share their m, in the calling thread's memory; packed[i] is where those
// of rows[i] are.
template <typename A>
void PackAll(Pool& pool, const RowTiles& tiles, std::span<const LinearRows> rows,
             const A** packed) {
  int64_t floats = 0;
  for (const LinearRows& r : rows) floats += r.m * internal::RowDepth<A>(r.k);
  A* buffer = nullptr;
  for (size_t i = 0; i < rows.size(); ++i) {
    if constexpr (std::is_same_v<A, float>) {
      if (rows[i].m == 1 && rows[i].inputs == Inputs::kF32) {
        packed[i] = rows[i].x;
        continue;
      }
    }
    if (buffer == nullptr) buffer = internal::ScratchRows<A>(floats);
    packed[i] = buffer;
    buffer += rows[i].m * internal::RowDepth<A>(rows[i].k);
  }
  if (buffer == nullptr) return;
  const int count = static_cast<int>(tiles.count());
  const auto pack = [&](int task) {
    const size_t i = static_cast<size_t>(task / count);
    const int64_t first = tiles.begin(task % count), k = rows[i].k;
    internal::PackRowsAs(rows[i].inputs, rows[i].x + first * rows[i].ldx, rows[i].ldx,
                         tiles.rows(task % count), k,
                         const_cast<A*>(packed[i]) + first * internal::RowDepth<A>(k));
  };
  if (count == 1) {
    for (size_t i = 0; i < rows.size(); ++i) pack(static_cast<int>(i));
  } else {
    pool.Run(count * static_cast<int>(rows.size()), pack);
  }
}

void CheckProduct(int64_t k, int leaves, Element element) {
  TITAN_CHECK(leaves == 1 || leaves == 2 || leaves == 4 || leaves == 8);
  TITAN_CHECK(k > 0 && k % leaves == 0);
  TITAN_CHECK(element == Element::kF32 || leaves == 1 || k / leaves % 2 == 0);
}

// The leaves that a call of m rows really cuts: in the library that tests link to see parity fail,
// large calls cut their chains elsewhere.
int LeavesOf(int64_t m, int64_t k, int leaves) {
#ifdef TITAN_PERTURB_CHAIN_ORDER
  if (m > internal::kMaxTileRows) return leaves > 1 ? 1 : (k % 4 == 0 ? 2 : 1);
#else
  static_cast<void>(m);
  static_cast<void>(k);
#endif
  return leaves;
}

}  // namespace

void Linear(Pool& pool, const LinearRows& rows, std::span<const LinearMatrix> matrices) {
  const Element element = matrices.empty() ? Element::kF32 : matrices[0].panels.element();
  for (const LinearMatrix& matrix : matrices) {
    CheckProduct(rows.k, matrix.leaves, element);
    TITAN_CHECK(matrix.panels.element() == element);
  }
  TITAN_CHECK(rows.inputs == Inputs::kF32 || element == Element::kBf16);
  if (rows.m == 0 || matrices.empty()) return;
  internal::VisitTile(
      matrices[0].panels, rows.inputs,
      [&]<typename W, typename A>(const internal::WeightTile<W, A>& tile, const W*) {
        const RowTiles tiles(rows.m, tile.max_rows);
        const A* packed = nullptr;
        PackAll<A>(pool, tiles, {&rows, 1}, &packed);
        std::vector<Product<W, A>> products;
        products.reserve(matrices.size());
        int64_t panels = 0;
        for (const LinearMatrix& matrix : matrices) {
          products.push_back({packed, rows.k, static_cast<const W*>(matrix.panels.data()), matrix.n,
                              LeavesOf(rows.m, rows.k, matrix.leaves), matrix.bias, matrix.addend,
                              matrix.out, matrix.ldo, panels});
          panels += PanelCount(matrix.n);
        }
        Multiply<W, A>(pool, tile, tiles, products, panels);
      });
}

void LinearSum(Pool& pool, int64_t m, std::span<const LinearTerm> terms, int64_t n, float* out,
               int64_t ldo) {
  TITAN_CHECK(!terms.empty());
  for (const LinearTerm& term : terms) CheckProduct(term.k, term.leaves, Element::kF32);
  if (m == 0 || n == 0) return;
  const internal::WeightTile<float>& tile = internal::CurrentTileKernels().f32;
  const RowTiles tiles(m, tile.max_rows);
  std::vector<LinearRows> rows;
  for (const LinearTerm& term : terms) rows.push_back({term.x, term.ldx, m, term.k});
  std::vector<const float*> packed(terms.size());
  PackAll<float>(pool, tiles, rows, packed.data());
  std::vector<Product<float, float>> products;
  for (size_t i = 0; i < terms.size(); ++i) {
    products.push_back({packed[i], terms[i].k, terms[i].panels, n,
                        LeavesOf(m, terms[i].k, terms[i].leaves), nullptr, i == 0 ? nullptr : out,
                        out, ldo, 0});
  }
  Multiply<float, float>(pool, tile, tiles, products, PanelCount(n));
}

void LinearWeightGradient(Pool& pool, const LinearRows& rows,
                          std::span<const LinearGradient> gradients) {
  const int64_t m = rows.m, k = rows.k;
  if (m == 0 || k == 0) return;
  // The panels of all matrices, numbered through: of which, and which of it.
  struct Place {
    const LinearGradient* gradient;
    int64_t panel;
    int columns() const { return ColumnsOf(panel, gradient->n); }
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
  const int64_t group = PanelsPerTask(pool, panel_count, row_blocks);
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
