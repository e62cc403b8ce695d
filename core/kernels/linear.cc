// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/linear.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/blocking.h"
#include "core/kernels/dot.h"
#include "core/kernels/isa.h"
#include "core/kernels/panels.h"
#include "core/kernels/shares.h"
#include "core/kernels/tile.h"

namespace titan::kernels {
namespace {

using internal::CurrentBlocking;
using internal::RowTiles;
using internal::Scratch;
using internal::ScratchFloats;
using internal::TileKernels;

// Of LinearGroups, about, so that its groups even out.
constexpr int64_t kGroupTasks = 16;

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

// Rows times one matrix. The panels of a call's products are numbered through; those of this one
// start at first_panel. Where they overlap the products are terms of a sum, in their order.
template <typename W>
struct Product {
  const LinearRows* rows;
  const W* panels;
  int64_t n;
  int leaves;
  const float* bias;
  const float* addend;
  float* out;
  int64_t ldo;
  int64_t first_panel;

  int64_t k() const { return rows->k; }
  const W* panel(int64_t p) const {
    return panels + p * kPanelColumns * PanelDepth(kElementOf<W>, k());
  }
  // Each chain in one go; else in parts. `depth` is that of a packed row.
  bool whole(int64_t depth, int max_rows) const {
    return depth <= CurrentBlocking().whole_chain || rows->m <= max_rows;
  }
};

// The tiles [t0, t1) of a call's rows, and where they are packed.
template <typename A>
struct Block {
  const RowTiles& tiles;
  int64_t t0, t1;
  const A* packed;  // [tile][RowDepth(k)][rows of tile]
  A* unpacked;      // null, or the same: nothing is packed yet, ShortChains does it

  int64_t first() const { return tiles.begin(t0); }
  int64_t rows() const { return tiles.begin(t1 - 1) + tiles.rows(t1 - 1) - first(); }
  // Tile t from step k0 on.
  const A* tile(int64_t t, int64_t k, int64_t k0 = 0) const {
    return packed + (tiles.begin(t) - first()) * internal::RowDepth<A>(k) +
           internal::RowDepth<A>(k0) * tiles.rows(t);
  }
  void Pack(const LinearRows& r, int64_t t) const {
    internal::PackRowsAs(r.inputs, r.x + tiles.begin(t) * r.ldx, r.ldx, tiles.rows(t), r.k,
                         unpacked + (tiles.begin(t) - first()) * internal::RowDepth<A>(r.k));
  }
  // What is fetched while tile t meets its first panel, like `ahead`: the rows of the tile after it
  // in place of the next panel.
  internal::Ahead NextRows(internal::Ahead ahead, const LinearRows& r, int64_t t,
                           int64_t panel_bytes) const {
    const int64_t row_bytes = r.ldx * static_cast<int64_t>(sizeof(float));
    ahead.far = reinterpret_cast<const char*>(r.x) + tiles.begin(t + 1) * row_bytes;
    ahead.stride = tiles.rows(t + 1) * row_bytes * internal::Ahead::kStep / panel_bytes;
    return ahead;
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

// Fetches the rows of an output tile, which is written when its chains end: a store that misses
// would hold up those of the next tiles.
void FetchOutput(const internal::TileOutput& to, int rows) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int r = 0; r < rows; ++r) {
    _mm_prefetch(reinterpret_cast<const char*>(to.out + r * to.ld), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(to.out + r * to.ld + kLine), _MM_HINT_T1);
  }
}

// Where the tile of panel p from row `row` on goes; `padded` is for the bias of a last panel.
template <typename W>
internal::TileOutput OutputOf(const Product<W>& product, int64_t p, int64_t row, float* padded) {
  const int columns = ColumnsOf(p, product.n);
  const int64_t at = row * product.ldo + p * kPanelColumns;
  return {BiasOf(product.bias, p, columns, padded),
          product.addend == nullptr ? nullptr : product.addend + at, product.out + at, product.ldo,
          columns};
}

// The block x panels [p0, p1) of the product, each chain in one go.
template <typename W, typename A>
void ShortChains(const internal::WeightTile<W, A>& tile, const Block<A>& block,
                 const Product<W>& product, int64_t p0, int64_t p1) {
  float padded[kPanelColumns];
  const int64_t k = product.k(), panel_elements = kPanelColumns * PanelDepth(kElementOf<W>, k);
  for (int64_t p = p0; p < p1; ++p) {
    const W* panel = product.panel(p);
    for (int64_t t = block.t0; t < block.t1; ++t) {
      const int rows = block.tiles.rows(t);
      auto ahead = internal::AheadOf(panel, panel_elements, t - block.t0, block.t1 - block.t0);
      if (block.unpacked != nullptr && p == p0) {
        block.Pack(*product.rows, t);
        if (t + 1 < block.t1) {
          ahead = block.NextRows(ahead, *product.rows, t,
                                 panel_elements * static_cast<int64_t>(sizeof(W)));
        }
      }
      const internal::TileOutput to = OutputOf(product, p, block.tiles.begin(t), padded);
      FetchOutput(to, rows);
      tile.output(rows, block.tile(t, k), panel, k, product.leaves, to, ahead);
    }
  }
}

// The same for long chains of one panel: parts of chain_part steps, all tiles for each part.
template <typename W, typename A>
void LongChains(const internal::WeightTile<W, A>& tile, const Block<A>& block,
                const Product<W>& product, int64_t p) {
  const int64_t first_row = block.first(), rows = block.rows(), k = product.k();
  const int64_t floats = rows * kPanelColumns;
  // Level 0..2: finished subtrees of 1, 2, 4 leaves; level 3: the open chains.
  float* levels = ScratchFloats(Scratch::kPartial, 4 * floats);
  float* open = levels + 3 * floats;
  const int64_t length = k / product.leaves;
  const int64_t chain_part = CurrentBlocking().chain_part;
  const W* panel = product.panel(p);
  for (int leaf = 0; leaf < product.leaves; ++leaf) {
    for (int64_t part = 0; part < length; part += chain_part) {
      const int64_t steps = std::min(chain_part, length - part);
      const int64_t k0 = leaf * length + part;
      for (int64_t t = block.t0; t < block.t1; ++t) {
        tile.chain(block.tiles.rows(t), block.tile(t, k, k0), panel + k0 * kPanelColumns, steps,
                   part > 0, open + (block.tiles.begin(t) - first_row) * kPanelColumns,
                   kPanelColumns);
      }
    }
    int level = 0;
    for (int bits = leaf; (bits & 1) != 0; bits >>= 1, ++level) {
      const float* left = levels + level * floats;
      for (int64_t i = 0; i < floats; ++i) open[i] = left[i] + open[i];
    }
    if (leaf + 1 < product.leaves) std::copy(open, open + floats, levels + level * floats);
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

// How a call's work is cut: blocks of rows, which are whole tiles, times groups of panels. A task
// is one of each.
struct Cut {
  Cut(int64_t m, int max_rows, int64_t block_rows, int64_t panels, int threads)
      : tiles(m, max_rows), panels(panels) {
    const int64_t block_tiles = std::max<int64_t>(1, block_rows / max_rows);
    blocks = (tiles.count() + block_tiles - 1) / block_tiles;
    // Threads share the rows where each gets enough of them, for then nothing is packed twice and
    // no row comes out of another core's cache; else, and where packing is nothing beside reading
    // the panels, they share the panels.
    if (m <= block_rows && panels * kPanelColumns >= kWideColumns * m) {
      blocks = 1;
    } else if (threads > 1) {
      blocks =
          std::max({blocks, std::min<int64_t>(threads, m / (kLoneBlockTiles * max_rows)),
                    std::min<int64_t>(threads * kBlocksPerThread, m / (kBlockTiles * max_rows))});
    }
    if (blocks >= threads) {
      blocks = (blocks + threads - 1) / threads * threads;
      if (threads > 1) groups = panels;
    } else {
      groups = std::min(panels, (threads * kGroupsPerThread + blocks - 1) / blocks);
    }
    tiles = RowTiles(m, max_rows, blocks);
    blocks = std::min(blocks, tiles.count());
  }
  int64_t first_tile(int64_t block) const { return tiles.count() * block / blocks; }
  // As even as possible, a longer group before a shorter one: the thread that took the shorter
  // takes the next longer one.
  int64_t first_panel(int64_t g) const { return (panels * g + groups - 1) / groups; }

  // Tiles of a block, at least, where a thread gets one block, and where it gets several.
  static constexpr int64_t kLoneBlockTiles = 2, kBlockTiles = 8;
  static constexpr int64_t kBlocksPerThread = 2;
  // Columns for each row from which a product is wide.
  static constexpr int64_t kWideColumns = 16;
  // The second group evens out what the first ones took.
  static constexpr int64_t kGroupsPerThread = 2;

  RowTiles tiles;
  int64_t blocks;
  int64_t panels;
  int64_t groups = 1;
};

// A number for each call of whatever types, which tells its packed rows from another call's.
uint64_t NextCall() {
  static std::atomic<uint64_t> calls{0};
  return calls.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Where the rows of one block of a call are packed, all of the call's different ones side by side,
// in the calling thread's memory; a thread that takes several tasks of a block packs each once. The
// cut's blocks are numbered from first_block on in the call.
template <typename A>
class BlockRows {
 public:
  BlockRows(const Cut& cut, uint64_t call, int64_t first_block, int64_t index,
            std::span<const LinearRows* const> rows)
      : tiles_(cut.tiles), t0_(cut.first_tile(index)), t1_(cut.first_tile(index + 1)), rows_(rows) {
    const int64_t block = first_block + index;
    int64_t depth = 0;
    for (const LinearRows* r : rows) depth += internal::RowDepth<A>(r->k);
    at_ = internal::ScratchRows<A>((tiles_.begin(t1_) - tiles_.begin(t0_)) * depth);
    if (packed_.call == call && packed_.block == block) return;
    packed_.call = call;
    packed_.block = block;
    packed_.done.assign(rows.size(), false);
  }
  // Those of a product; products of the same rows come one after the other.
  Block<A> Of(const LinearRows* rows) {
    if (rows_[index_] != rows) {
      at_ += (tiles_.begin(t1_) - tiles_.begin(t0_)) * internal::RowDepth<A>(rows_[index_]->k);
      ++index_;
    }
    return {tiles_, t0_, t1_, at_, packed_.done[index_] ? nullptr : at_};
  }
  void SetPacked() { packed_.done[index_] = true; }
  // The calling thread's memory is about to hold other rows.
  static void Forget() { packed_.call = 0; }

 private:
  struct Packed {
    uint64_t call = 0;
    int64_t block = 0;
    std::vector<bool> done;  // of the different rows
  };
  static thread_local Packed packed_;

  const RowTiles& tiles_;
  const int64_t t0_, t1_;
  const std::span<const LinearRows* const> rows_;
  size_t index_ = 0;
  A* at_;
};
template <typename A>
thread_local typename BlockRows<A>::Packed BlockRows<A>::packed_;

// As many rows as the product takes in a block.
template <typename A, typename W>
int64_t BlockRowsOf(const Product<W>& product, int max_rows) {
  const int64_t depth = internal::RowDepth<A>(product.k());
  const internal::Blocking& blocking = CurrentBlocking();
  return product.whole(depth, max_rows) ? blocking.row_block_floats / depth
                                        : blocking.long_chain_rows;
}

// Panels [first, last) of the call's products, for the rows of a block.
template <typename W, typename A>
void MultiplyPanels(const internal::WeightTile<W, A>& tile, int max_rows,
                    std::span<const Product<W>> products, int64_t first, int64_t last,
                    BlockRows<A>& rows) {
  for (const Product<W>& product : products) {
    const Block<A> block = rows.Of(product.rows);
    const int64_t p0 = std::max<int64_t>(0, first - product.first_panel);
    const int64_t p1 = std::min(PanelCount(product.n), last - product.first_panel);
    if (p0 >= p1) continue;
    if (product.whole(internal::RowDepth<A>(product.k()), max_rows)) {
      ShortChains(tile, block, product, p0, p1);
    } else {
      if (block.unpacked != nullptr) {
        for (int64_t t = block.t0; t < block.t1; ++t) block.Pack(*product.rows, t);
      }
      for (int64_t p = p0; p < p1; ++p) LongChains(tile, block, product, p);
    }
    rows.SetPacked();
  }
}

// All products over all their panels, which are `panel_count` together. Those of the same rows
// stand side by side.
template <typename W, typename A>
void Multiply(Pool& pool, const internal::WeightTile<W, A>& tile,
              std::span<const Product<W>> products, int64_t panel_count) {
  if (panel_count == 0) return;
  const uint64_t call = NextCall();
  const int64_t m = products[0].rows->m;
  const int max_rows = m <= tile.lone_rows ? tile.lone_rows : tile.max_rows;
  int64_t block_rows = m;
  std::vector<const LinearRows*> rows;
  for (const Product<W>& product : products) {
    block_rows = std::min(block_rows, BlockRowsOf<A>(product, max_rows));
    if (rows.empty() || rows.back() != product.rows) rows.push_back(product.rows);
  }
  const Cut cut(m, max_rows, block_rows, panel_count, pool.size());
  const auto task_of = [&](int64_t task) {
    const int64_t group = task % cut.groups;
    BlockRows<A> packed(cut, call, 0, task / cut.groups, rows);
    MultiplyPanels(tile, max_rows, products, cut.first_panel(group), cut.first_panel(group + 1),
                   packed);
  };
  if (cut.blocks >= pool.size()) {
    // Who helps packs a block for it, which takes half as long as a panel.
    internal::RunInShares(pool, cut.blocks * cut.groups, /*least=*/2, task_of);
  } else {
    pool.Run(static_cast<int>(cut.blocks * cut.groups), task_of);
  }
}

// The rows once they are made into x.
LinearRows Made(LinearRows rows, Pool& pool, float* x) {
  rows.made->make(pool, x);
  rows.x = x;
  rows.ldx = rows.k;
  rows.made = nullptr;
  return rows;
}

// A few rows in the layout of a tile, in the calling thread's memory or where they are.
template <typename A>
const A* PackFew(const LinearRows& rows) {
  if constexpr (std::is_same_v<A, float>) {
    if (rows.m == 1 && rows.inputs == Inputs::kF32) return rows.x;
  }
  A* packed = internal::ScratchRows<A>(rows.m * internal::RowDepth<A>(rows.k));
  internal::PackRowsAs(rows.inputs, rows.x, rows.ldx, static_cast<int>(rows.m), rows.k, packed);
  return packed;
}

// Panel p of a product of so few rows, and with it the one `apart` panels on if that is not 0.
template <typename W, typename A>
void MultiplyFew(const internal::WeightTile<W, A>& tile, const Product<W>& product, const A* packed,
                 int64_t p, int64_t apart) {
  const int rows = static_cast<int>(product.rows->m);
  const int64_t k = product.k();
  float padded[kPanelColumns];
  const W* panel = product.panel(p);
  const internal::TileOutput to = OutputOf(product, p, 0, padded);
  FetchOutput(to, rows);
  if (apart == 0) {
    tile.output(rows, packed, panel, k, product.leaves, to,
                internal::AheadOf(panel, kPanelColumns * PanelDepth(kElementOf<W>, k), 0, 1));
    return;
  }
  FetchOutput(to + apart, rows);
  tile.pair(rows, packed, panel, apart, k, product.leaves, to);
}

// Products of so few rows that memory decides how long they take (WeightTile::pair_rows). Each
// thread streams through a share of the panels, two at a time, and at the end helps another.
template <typename W, typename A>
class FewRows {
 public:
  FewRows(const internal::WeightTile<W, A>& tile, const LinearRows& rows,
          std::span<const Product<W>> products, int64_t panels, int threads)
      : tile_(tile), rows_(rows) {
    runs_.reserve(2 * (products.size() + static_cast<size_t>(threads)));
    std::vector<int64_t> starts;  // of the shares' units, and their end
    starts.reserve(static_cast<size_t>(threads) + 1);
    int64_t unit = 0;
    for (int64_t t = 0; t < threads; ++t) {
      const int64_t first = (panels * t + threads - 1) / threads;
      const int64_t last = (panels * (t + 1) + threads - 1) / threads;
      starts.push_back(unit);
      // The pairs of all products, then their other panels; of the last pair too, so that less is
      // left to wait for.
      for (const bool pairs : {true, false}) {
        for (const Product<W>& product : products) {
          const int64_t p0 = std::max<int64_t>(0, first - product.first_panel);
          const int64_t p1 = std::min(PanelCount(product.n), last - product.first_panel);
          if (p0 >= p1) continue;
          const int64_t full = std::min(p1, product.n / kPanelColumns) - p0;
          const bool ends_share = last <= product.first_panel + PanelCount(product.n);
          const int64_t paired =
              std::max<int64_t>(0, full / 2 - (ends_share && threads > 1 ? 1 : 0));
          const int64_t count = pairs ? paired : p1 - p0 - 2 * paired;
          if (count == 0) continue;
          runs_.push_back({unit, &product, pairs ? p0 : p0 + 2 * paired, pairs ? paired : 0});
          unit += count;
        }
      }
    }
    starts.push_back(unit);
    shares_.emplace(starts);
  }

  void Work(int share) {
    int64_t unit = shares_->Next(share);
    if (unit < 0) return;
    Fetch(unit);
    const A* packed = Packed();
    for (; unit >= 0; unit = shares_->Next(share)) Multiply(unit, packed);
  }

 private:
  // Units from `unit` on: panels of a product one after the other, each with the one `apart` after
  // it if that is not 0.
  struct Run {
    int64_t unit;
    const Product<W>* product;
    int64_t panel;
    int64_t apart;
  };

  const Run& RunOf(int64_t unit) const {
    size_t i = runs_.size() - 1;
    while (runs_[i].unit > unit) --i;
    return runs_[i];
  }
  void Fetch(int64_t unit) const {
    const Run& run = RunOf(unit);
    const int64_t p = run.panel + (unit - run.unit);
    internal::FetchFirst(run.product->panel(p));
    if (run.apart > 0) internal::FetchFirst(run.product->panel(p + run.apart));
  }
  const A* Packed() const {
    return PackFew<A>(
        rows_.made == nullptr
            ? rows_
            : Made(rows_, Pool::OfThisThread(), ScratchFloats(Scratch::kMade, rows_.m * rows_.k)));
  }
  void Multiply(int64_t unit, const A* packed) const {
    const Run& run = RunOf(unit);
    MultiplyFew(tile_, *run.product, packed, run.panel + (unit - run.unit), run.apart);
  }

  const internal::WeightTile<W, A>& tile_;
  const LinearRows& rows_;
  std::vector<Run> runs_;
  std::optional<internal::Shares> shares_;
};

// A group of LinearGroups and its tasks: blocks of its rows times parts of its panels.
template <typename W, typename A>
class Group {
 public:
  // `tasks`: as many as the group's share of the whole work asks for; `first_block`: in the call.
  Group(const internal::WeightTile<W, A>& tile, std::span<const Product<W>> products,
        int64_t panels, int64_t tasks, int64_t first_task, int64_t first_block)
      : tile_(tile),
        products_(products),
        rows_(products[0].rows),
        max_rows_(rows_->m <= tile.lone_rows ? tile.lone_rows : tile.max_rows),
        first_task_(first_task),
        first_block_(first_block),
        cut_(rows_->m, max_rows_, MostRows(), panels, /*threads=*/1) {
    cut_.groups = std::clamp<int64_t>(tasks / cut_.blocks, 1, panels);
  }
  int64_t first_task() const { return first_task_; }
  int64_t end_task() const { return first_task_ + cut_.blocks * cut_.groups; }
  int64_t end_block() const { return first_block_ + cut_.blocks; }

  void Work(uint64_t call, int64_t task) const {
    const int64_t part = (task - first_task_) % cut_.groups;
    const int64_t first = cut_.first_panel(part), last = cut_.first_panel(part + 1);
    if (rows_->m <= tile_.pair_rows) return WorkFew(first, last);
    BlockRows<A> packed(cut_, call, first_block_, (task - first_task_) / cut_.groups, {&rows_, 1});
    MultiplyPanels(tile_, max_rows_, products_, first, last, packed);
  }

 private:
  int64_t MostRows() const {
    int64_t most = rows_->m;
    for (const Product<W>& product : products_) {
      most = std::min(most, BlockRowsOf<A>(product, max_rows_));
    }
    return most;
  }
  // As FewRows: two panels at a time.
  void WorkFew(int64_t first, int64_t last) const {
    BlockRows<A>::Forget();
    const A* packed = PackFew<A>(*rows_);
    for (const Product<W>& product : products_) {
      const int64_t p0 = std::max<int64_t>(0, first - product.first_panel);
      const int64_t p1 = std::min(PanelCount(product.n), last - product.first_panel);
      const int64_t pairs = std::max<int64_t>(0, std::min(p1, product.n / kPanelColumns) - p0) / 2;
      for (int64_t p = p0; p < p0 + pairs; ++p) MultiplyFew(tile_, product, packed, p, pairs);
      for (int64_t p = p0 + 2 * pairs; p < p1; ++p) MultiplyFew(tile_, product, packed, p, 0);
    }
  }

  const internal::WeightTile<W, A>& tile_;
  std::span<const Product<W>> products_;
  const LinearRows* rows_;
  int max_rows_;
  int64_t first_task_, first_block_;
  Cut cut_;
};

void CheckProduct(int64_t k, int leaves, Element element) {
  TITAN_CHECK(leaves == 1 || leaves == 2 || leaves == 4 || leaves == 8);
  TITAN_CHECK(k > 0 && k % leaves == 0);
  TITAN_CHECK(element == Element::kF32 || leaves == 1 || k / leaves % 2 == 0);
}

// How long a group takes beside the others: a few rows take as long as reading the panels does.
double WorkOf(const LinearGroup& group) {
  constexpr int64_t kRowsOfARead = 8;
  int64_t panels = 0;
  for (const LinearMatrix& matrix : group.matrices) panels += PanelCount(matrix.n);
  return static_cast<double>(panels * std::max(kRowsOfARead, group.rows.m));
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

void CheckProducts(const LinearRows& rows, std::span<const LinearMatrix> matrices,
                   Element element) {
  for (const LinearMatrix& matrix : matrices) {
    CheckProduct(rows.k, matrix.leaves, element);
    TITAN_CHECK(matrix.panels.element() == element);
  }
  TITAN_CHECK(rows.inputs == Inputs::kF32 || element == Element::kBf16);
}

// Adds the rows' products to the list; how many panels they have together.
template <typename W>
int64_t AddProducts(const LinearRows& rows, std::span<const LinearMatrix> matrices,
                    std::vector<Product<W>>* products) {
  int64_t panels = 0;
  for (const LinearMatrix& matrix : matrices) {
    products->push_back({&rows, static_cast<const W*>(matrix.panels.data()), matrix.n,
                         LeavesOf(rows.m, rows.k, matrix.leaves), matrix.bias, matrix.addend,
                         matrix.out, matrix.ldo, panels});
    panels += PanelCount(matrix.n);
  }
  return panels;
}

}  // namespace

void Linear(Pool& pool, const LinearRows& rows, std::span<const LinearMatrix> matrices) {
  CheckProducts(rows, matrices, matrices.empty() ? Element::kF32 : matrices[0].panels.element());
  if (rows.m == 0 || matrices.empty()) return;
  internal::VisitTile(
      matrices[0].panels, rows.inputs,
      [&]<typename W, typename A>(const internal::WeightTile<W, A>& tile, const W*) {
        const bool few = rows.m <= tile.pair_rows;
        const LinearRows shared =
            few || rows.made == nullptr ? rows : Made(rows, pool, rows.made->x);
        std::vector<Product<W>> products;
        products.reserve(matrices.size());
        const int64_t panels = AddProducts(shared, matrices, &products);
        if (!few) return Multiply<W, A>(pool, tile, products, panels);
        FewRows<W, A> work(tile, shared, products, panels, pool.size());
        pool.Run(pool.size(), [&](int task) { work.Work(task); });
      });
}

void LinearGroups(Pool& pool, std::span<const LinearGroup> groups) {
  const LinearGroup* first = nullptr;  // that has something to do
  size_t count = 0;
  double work = 0;
  for (const LinearGroup& group : groups) {
    if (group.rows.m == 0 || group.matrices.empty()) continue;
    if (first == nullptr) first = &group;
    CheckProducts(group.rows, group.matrices, first->matrices[0].panels.element());
    TITAN_CHECK(group.rows.made == nullptr && group.rows.k == first->rows.k &&
                group.rows.inputs == first->rows.inputs);
    count += group.matrices.size();
    work += WorkOf(group);
  }
  if (first == nullptr) return;
  internal::VisitTile(
      first->matrices[0].panels, first->rows.inputs,
      [&]<typename W, typename A>(const internal::WeightTile<W, A>& tile, const W*) {
        std::vector<Product<W>> products;
        products.reserve(count);  // parts refer to them
        std::vector<Group<W, A>> parts;
        parts.reserve(groups.size());
        int64_t tasks = 0, blocks = 0;
        for (const LinearGroup& group : groups) {
          if (group.rows.m == 0 || group.matrices.empty()) continue;
          const size_t at = products.size();
          const int64_t panels = AddProducts(group.rows, group.matrices, &products);
          if (panels == 0) continue;
          const double share = WorkOf(group) / work;
          parts.emplace_back(
              tile, std::span(products).subspan(at), panels,
              static_cast<int64_t>(share * static_cast<double>(pool.size() * kGroupTasks)) + 1,
              tasks, blocks);
          tasks = parts.back().end_task();
          blocks = parts.back().end_block();
        }
        const uint64_t call = NextCall();
        internal::RunInShares(pool, tasks, /*least=*/1, [&](int64_t task) {
          const auto after =
              std::upper_bound(parts.begin(), parts.end(), task,
                               [](int64_t t, const auto& part) { return t < part.first_task(); });
          std::prev(after)->Work(call, task);
        });
      });
}

void LinearSum(Pool& pool, int64_t m, std::span<const LinearTerm> terms, int64_t n, float* out,
               int64_t ldo) {
  TITAN_CHECK(!terms.empty());
  for (const LinearTerm& term : terms) CheckProduct(term.k, term.leaves, Element::kF32);
  if (m == 0 || n == 0) return;
  const internal::WeightTile<float>& tile = internal::CurrentTileKernels().f32;
  std::vector<LinearRows> rows;
  for (const LinearTerm& term : terms) rows.push_back({term.x, term.ldx, m, term.k});
  std::vector<Product<float>> products;
  for (size_t i = 0; i < terms.size(); ++i) {
    products.push_back({&rows[i], terms[i].panels, n, LeavesOf(m, terms[i].k, terms[i].leaves),
                        nullptr, i == 0 ? nullptr : out, out, ldo, 0});
  }
  Multiply<float, float>(pool, tile, products, PanelCount(n));
}

}  // namespace titan::kernels
