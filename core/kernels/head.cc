// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/head.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "core/kernels/dot.h"
#include "core/kernels/elementary.h"
#include "core/kernels/isa.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"
#include "core/kernels/tile.h"
#include "core/kernels/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/head.cc"
#include "core/kernels/targets.h"
//
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/kernels/elementary-inl.h"

#ifndef TITAN_CORE_KERNELS_HEAD_CC_ONCE_
#define TITAN_CORE_KERNELS_HEAD_CC_ONCE_
namespace titan::kernels::internal {

// Statistics of one row of one chunk. sum is +0 where the chunk is to be skipped.
struct ChunkStatistics {
  float max;       // m_c
  float sum;       // s_c
  float weighted;  // b_c
};

// What dlogits needs of one row.
struct RowGradient {
  float max, log_sum, gradient;  // m, DLog(S), g = dlp * invT
  int32_t target;
};

}  // namespace titan::kernels::internal
#endif

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// Scales the logits of one chunk in place by invT and takes their statistics; b_c only if asked
// for.
void HeadChunk(float* z, int64_t count, float inv_temperature, bool weighted,
               internal::ChunkStatistics* out) {
  const FloatTag d;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const FloatVec scale = Broadcast(inv_temperature), lowest = Broadcast(kMinusInfinity);
  FloatVec most = lowest;
  auto nan = hn::Lt(lowest, lowest);  // no lane
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVec v = hn::Mul(LoadPart(z + i, count - i), scale);
    StorePart(v, z + i, count - i);
    const FloatVec seen =
        count - i < kLanes
            ? hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(count - i)), v, lowest)
            : v;
    nan = hn::Or(nan, hn::Ne(v, v));
    most = hn::IfThenElse(hn::Gt(seen, most), seen, most);
  }
  const float max = hn::GetLane(hn::MaxOfLanes(d, most)) + 0.0f;
  if (max == kMinusInfinity) {
    const float sum = hn::AllFalse(d, nan) ? 0.0f : std::bit_cast<float>(elementary::kNanBits);
    *out = {max, sum, sum};
    return;
  }
  const FloatVec center = Broadcast(max);
  const auto exponential = [&](int64_t i, int64_t left, FloatVec* difference) {
    *difference = hn::Sub(LoadPart(z + i, left), center);
    const FloatVec e = VExp(*difference);
    if (left >= kLanes) return e;
    return hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(left)), e);
  };
  out->max = max;
  out->sum = ChunkSum(count, [&](FloatVec acc, int64_t i, int64_t left) {
    FloatVec difference;
    return hn::Add(acc, exponential(i, left, &difference));
  });
  out->weighted = 0.0f;
  if (!weighted) return;
  out->weighted = ChunkSum(count, [&](FloatVec acc, int64_t i, int64_t left) {
    FloatVec difference;
    const FloatVec e = exponential(i, left, &difference);
    return hn::IfThenElse(hn::Eq(e, hn::Zero(d)), acc, hn::MulAdd(e, difference, acc));
  });
}

// logits[rows][32], columns first_column .. of the vocabulary -> dz in place.
void HeadGradientTile(int rows, const internal::RowGradient* of, float inv_temperature,
                      int64_t first_column, float* logits) {
  const FloatTag d;
  const FloatVec one = Broadcast(1.0f), scale = Broadcast(inv_temperature);
  for (int r = 0; r < rows; ++r) {
    const FloatVec m = Broadcast(of[r].max), log_sum = Broadcast(of[r].log_sum);
    const FloatVec g = Broadcast(of[r].gradient);
    const int64_t lane = of[r].target - first_column;
    const FloatVec target =
        Broadcast(lane >= 0 && lane < kPanelColumns ? static_cast<float>(lane) : -1.0f);
    for (int64_t i = 0; i < kPanelColumns; i += kLanes) {
      float* at = logits + r * kPanelColumns + i;
      const FloatVec z = hn::Mul(Load(at), scale);
      const FloatVec p = VExp(hn::Sub(hn::Sub(z, m), log_sum));
      const FloatVec index = hn::Iota(d, static_cast<float>(i));
      const FloatVec hot = hn::IfThenElseZero(hn::Eq(index, target), one);
      Store(hn::Mul(g, hn::Sub(hot, p)), at);
    }
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

using internal::ChunkStatistics;
using internal::RowGradient;
using internal::RowTiles;
using internal::Scratch;
using internal::ScratchFloats;
using internal::TileKernels;

constexpr int64_t kPanelBlock =
    kRowSumChunk / kPanelColumns;   // panels of one chunk of the vocabulary
constexpr int64_t kRowBlock = 56;   // rows whose chunk of logits (224 KiB) stays in the cache
constexpr int64_t kMergeRows = 16;  // rows of one merging task
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int ColumnsOf(int64_t panel, int64_t n) {
  return static_cast<int>(std::min(kPanelColumns, n - panel * kPanelColumns));
}

float Canonical(float x) { return x == x ? x : std::bit_cast<float>(elementary::kNanBits); }

void CheckShape(const HeadShape& shape, int64_t rows, const int32_t* targets, ConstPanels panels) {
  TITAN_CHECK(panels.element() == Element::kF32 || shape.leaves == 1 ||
              shape.hidden / shape.leaves % 2 == 0);
  TITAN_CHECK(shape.inputs == Inputs::kF32 || panels.element() == Element::kBf16);
  TITAN_CHECK(shape.vocab > 0 && shape.hidden > 0 && shape.hidden % shape.leaves == 0);
  TITAN_CHECK(shape.leaves == 1 || shape.leaves == 2 || shape.leaves == 4 || shape.leaves == 8);
  for (int64_t r = 0; r < rows; ++r) TITAN_CHECK(targets[r] >= 0 && targets[r] < shape.vocab);
}

// hidden -> [tile][RowDepth(H)][rows of tile], in the calling thread's memory.
template <typename A>
const A* PackHidden(Pool& pool, const RowTiles& tiles, Inputs inputs, const float* hidden,
                    int64_t ldh, int64_t rows, int64_t h) {
  const int64_t depth = internal::RowDepth<A>(h);
  A* packed = internal::ScratchRows<A>(rows * depth);
  pool.Run(static_cast<int>(tiles.count()), [&](int t) {
    const int64_t first = tiles.begin(t);
    internal::PackRowsAs(inputs, hidden + first * ldh, ldh, tiles.rows(t), h,
                         packed + first * depth);
  });
  return packed;
}

// Statistics of the chunks of one row, ascending -> m, DLog(S), B / S.
struct MergedRow {
  float max, log_sum, mean;
};
MergedRow Merge(const ChunkStatistics* chunk, int64_t chunks, int64_t stride) {
  float max = kMinusInfinity, sum = 0.0f, weighted = 0.0f;
  for (int64_t c = 0; c < chunks; ++c) max = std::max(max, chunk[c * stride].max);
  for (int64_t c = 0; c < chunks; ++c) {
    const ChunkStatistics& s = chunk[c * stride];
    if (s.max == kMinusInfinity && s.sum == 0.0f) continue;
    const float factor = DExp(s.max - max);
    sum = std::fma(s.sum, factor, sum);
    weighted = std::fma(std::fma(s.sum, s.max - max, s.weighted), factor, weighted);
  }
  return {max, Canonical(DLog(sum)), weighted / sum};
}

// Chunks of columns [first, first + count) of the vocabulary, which the panels hold.
template <typename W, typename A>
void ChunksOf(Pool& pool, const internal::WeightTile<W, A>& tile, const HeadShape& shape,
              const float* hidden, int64_t ldh, int64_t rows, const W* panels, int64_t first,
              int64_t count, const int32_t* targets, bool want_entropy, ChunkStatistics* statistics,
              float* target_logits) {
  const auto chunk_statistics = TITAN_DISPATCH(HeadChunk);
  const int64_t h = shape.hidden, panel_count = PanelCount(count);
  const int64_t depth = PanelDepth(kElementOf<W>, h);
  const int64_t chunks = (count + kRowSumChunk - 1) / kRowSumChunk;
  const RowTiles tiles(rows, tile.max_rows);
  const int64_t block_tiles = std::max<int64_t>(1, kRowBlock / tile.max_rows);
  const int64_t blocks = (tiles.count() + block_tiles - 1) / block_tiles;
  const A* packed = PackHidden<A>(pool, tiles, shape.inputs, hidden, ldh, rows, h);
  pool.Run(static_cast<int>(chunks * blocks), [&](int task) {
    const int64_t c = task / blocks, t0 = task % blocks * block_tiles;
    const int64_t t1 = std::min(tiles.count(), t0 + block_tiles);
    const int64_t first_row = tiles.begin(t0), first_column = c * kRowSumChunk;
    const int64_t columns = std::min(kRowSumChunk, count - first_column);
    const int64_t block_rows = tiles.begin(t1 - 1) + tiles.rows(t1 - 1) - first_row;
    float* z = ScratchFloats(Scratch::kLogits, block_rows * kRowSumChunk);
    const int64_t p1 = std::min(panel_count, (c + 1) * kPanelBlock);
    for (int64_t p = c * kPanelBlock; p < p1; ++p) {
      for (int64_t t = t0; t < t1; ++t) {
        float* logits =
            z + (tiles.begin(t) - first_row) * kRowSumChunk + p * kPanelColumns - first_column;
        tile.output(tiles.rows(t), packed + tiles.begin(t) * internal::RowDepth<A>(h),
                    panels + p * kPanelColumns * depth, h, shape.leaves,
                    {.out = logits, .ld = kRowSumChunk},
                    internal::AheadOf(panels + p * kPanelColumns * depth, kPanelColumns * depth,
                                      t - t0, t1 - t0));
      }
    }
    for (int64_t r = 0; r < block_rows; ++r) {
      const int64_t row = first_row + r;
      float* logits = z + r * kRowSumChunk;
      chunk_statistics(logits, columns, shape.inv_temperature, want_entropy,
                       &statistics[c * rows + row]);
      const int64_t column = targets[row] - first - first_column;
      if (column >= 0 && column < columns) target_logits[row] = logits[column];
    }
  });
}

// One backward call. The vocabulary is walked in blocks of 1024 columns; a block's dz is kept as
// panels [panel][rows][32], which is what the weight gradient reads; the input gradient's chains
// stay open in memory from block to block. With a part, a block's dz comes from its owner.
template <typename W, typename A>
class HeadBackward {
 public:
  HeadBackward(Pool& pool, const internal::WeightTile<W, A>& logits_tile, const HeadShape& shape,
               int64_t rows, const W* panels, std::span<const HeadUnit> units, float* gradient,
               const HeadPart* part)
      : pool_(pool),
        logits_tile_(logits_tile),
        tile_(internal::CurrentTileKernels()),
        shape_(shape),
        rows_(rows),
        part_(part),
        owned_(part == nullptr ? RowRange{0, shape.vocab} : part->vocabulary),
        output_(part == nullptr ? RowRange{0, shape.hidden} : part->hidden),
        panels_(panels),
        depth_(PanelDepth(kElementOf<W>, shape.hidden)),
        columns_panels_(part == nullptr ? panels : static_cast<const W*>(part->columns.data())),
        columns_depth_(PanelDepth(kElementOf<W>, output_.end - output_.begin)),
        units_(units),
        gradient_(gradient),
        tiles_(rows, std::min(logits_tile.max_rows, tile_.f32.max_rows)),
        weight_tiles_(shape.hidden, tile_.f32.max_rows),
        hidden_panels_(PanelCount(output_.end - output_.begin)),
        leaves_(LeafCount(shape.vocab, 0)),
        level_floats_(hidden_panels_ * rows * kPanelColumns) {
    const int64_t h = shape.hidden;
    columns_ = ScratchFloats(Scratch::kPanel, rows * h);
    dz_ = ScratchFloats(Scratch::kLogits, 2 * rows * kRowSumChunk);
    dz_packed_ = dz_ + rows * kRowSumChunk;
    transposed_ =
        ScratchFloats(Scratch::kTransposed, hidden_panels_ * kRowSumChunk * kPanelColumns);
    levels_ = ScratchFloats(Scratch::kPartial, 4 * level_floats_);
  }

  void Run(const float* hidden, int64_t ldh, const RowGradient* of, float* dhidden, int64_t ldd) {
    packed_ = PackHidden<A>(pool_, tiles_, shape_.inputs, hidden, ldh, rows_, shape_.hidden);
    if (gradient_ != nullptr) PackUnits(hidden, ldh);
    for (int64_t first = 0; first < shape_.vocab; first += kRowSumChunk) {
      const int64_t count = std::min(kRowSumChunk, shape_.vocab - first);
      const bool owned = first >= owned_.begin && first < owned_.end;
      if (owned) Logits(first, count, of);
      if (part_ != nullptr) {
        const int64_t floats = PanelCount(count) * kPanelColumns * rows_;
        part_->share(first, std::span(dz_, static_cast<size_t>(floats)));
      }
      WeightsAndPacking(first, count, owned && gradient_ != nullptr);
      Inputs(first, count);
    }
    const float* open = levels_ + 3 * level_floats_;
    pool_.Run(static_cast<int>(hidden_panels_), [&](int q) {
      const int columns = ColumnsOf(q, output_.end - output_.begin);
      for (int64_t r = 0; r < rows_; ++r) {
        std::copy_n(open + (q * rows_ + r) * kPanelColumns, columns,
                    dhidden + r * ldd + output_.begin + q * kPanelColumns);
      }
    });
  }

 private:
  // hidden of each unit -> [tile of H][rows of the unit][rows of tile].
  void PackUnits(const float* hidden, int64_t ldh) {
    pool_.Run(static_cast<int>(weight_tiles_.count()), [&](int t) {
      const int64_t first = weight_tiles_.begin(t);
      for (const HeadUnit& unit : units_) {
        internal::PackColumns(
            hidden + unit.first * ldh + first, ldh, weight_tiles_.rows(t), unit.count,
            columns_ + unit.first * shape_.hidden + first * unit.count, shape_.inputs);
      }
    });
  }

  // dz of columns [first, first + count).
  void Logits(int64_t first, int64_t count, const RowGradient* of) {
    const auto gradient_tile = TITAN_DISPATCH(HeadGradientTile);
    const int64_t h = shape_.hidden, panels = PanelCount(count);
    const int64_t p0 = (first - owned_.begin) / kPanelColumns;
    const int64_t block_tiles = std::max<int64_t>(1, kRowBlock * 4 / logits_tile_.max_rows);
    const int64_t blocks = (tiles_.count() + block_tiles - 1) / block_tiles;
    pool_.Run(static_cast<int>(panels * blocks), [&](int task) {
      const int64_t p = task / blocks, t0 = task % blocks * block_tiles;
      const int64_t t1 = std::min(tiles_.count(), t0 + block_tiles);
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t row = tiles_.begin(t);
        float* z = dz_ + (p * rows_ + row) * kPanelColumns;
        logits_tile_.output(tiles_.rows(t), packed_ + row * internal::RowDepth<A>(h),
                            panels_ + (p0 + p) * kPanelColumns * depth_, h, shape_.leaves,
                            {.out = z, .ld = kPanelColumns},
                            internal::AheadOf(panels_ + (p0 + p) * kPanelColumns * depth_,
                                              kPanelColumns * depth_, t - t0, t1 - t0));
        gradient_tile(tiles_.rows(t), of + row, shape_.inv_temperature, first + p * kPanelColumns,
                      z);
      }
    });
  }

  // The weight gradient of the block's panels; dz and the weights repacked for the input gradient.
  void WeightsAndPacking(int64_t first, int64_t count, bool weights) {
    const int64_t h = shape_.hidden, panels = PanelCount(count);
    const int64_t p0 = (first - owned_.begin) / kPanelColumns;
    const int64_t weight_tasks = weights ? panels : 0;
    pool_.Run(static_cast<int>(weight_tasks + tiles_.count() + hidden_panels_), [&](int task) {
      if (task < weight_tasks) {
        const float* dz = dz_ + task * rows_ * kPanelColumns;
        float* out = gradient_ + (p0 + task) * kPanelColumns * h;
        for (int64_t t = 0; t < weight_tiles_.count(); ++t) {
          const int64_t k = weight_tiles_.begin(t);
          for (const HeadUnit& unit : units_) {
            if (unit.count == 0) continue;
            tile_.accumulate(weight_tiles_.rows(t), columns_ + unit.first * h + k * unit.count,
                             dz + unit.first * kPanelColumns, unit.count, out + k * kPanelColumns,
                             kPanelColumns, ColumnsOf(p0 + task, owned_.end - owned_.begin));
          }
        }
      } else if (task < weight_tasks + tiles_.count()) {
        const int64_t t = task - weight_tasks, row = tiles_.begin(t);
        const int rows = tiles_.rows(t);
        for (int64_t p = 0; p < panels; ++p) {
          internal::PackRows(dz_ + (p * rows_ + row) * kPanelColumns, kPanelColumns, rows,
                             kPanelColumns,
                             dz_packed_ + row * kRowSumChunk + p * kPanelColumns * rows);
        }
      } else {
        TransposeBlock(task - weight_tasks - tiles_.count(), first / kPanelColumns, panels);
      }
    });
  }

  // Columns 32q.. of the output's weights as [column of the vocabulary][32].
  void TransposeBlock(int64_t q, int64_t p0, int64_t panels) {
    const int columns = ColumnsOf(q, output_.end - output_.begin);
    float buffer[kPanelColumns * kPanelColumns];
    for (int64_t p = 0; p < panels; ++p) {
      const float* in =
          internal::AsFloats(columns_panels_ + (p0 + p) * kPanelColumns * columns_depth_,
                             q * kPanelColumns, columns, buffer);
      float* out = transposed_ + (q * kRowSumChunk + p * kPanelColumns) * kPanelColumns;
      internal::TransposeFloats(in, kPanelColumns, kPanelColumns, columns, out, kPanelColumns);
      if (columns == kPanelColumns) continue;
      for (int i = 0; i < kPanelColumns; ++i) {
        std::fill(out + i * kPanelColumns + columns, out + (i + 1) * kPanelColumns, 0.0f);
      }
    }
  }

  // Advances the chains of dhidden by the block's columns; leaves may end inside the block.
  void Inputs(int64_t first, int64_t count) {
    const int64_t length = shape_.vocab / leaves_;
    pool_.Run(static_cast<int>(hidden_panels_ * tiles_.count()), [&](int task) {
      const int64_t q = task / tiles_.count(), t = task % tiles_.count(), row = tiles_.begin(t);
      const int rows = tiles_.rows(t);
      const int64_t floats = rows * kPanelColumns;
      float* level =
          levels_ + (q * rows_ + row) * kPanelColumns;  // of level 0; the open chains are level 3
      float* open = level + 3 * level_floats_;
      for (int64_t at = 0; at < count;) {
        const int64_t leaf = (first + at) / length, leaf_end = (leaf + 1) * length - first;
        const int64_t steps = std::min(count, leaf_end) - at;
        tile_.f32.chain(rows, dz_packed_ + row * kRowSumChunk + at * rows,
                        transposed_ + (q * kRowSumChunk + at) * kPanelColumns, steps,
                        (first + at) % length != 0, open, kPanelColumns);
        at += steps;
        if (at < leaf_end) continue;
        float* left = level;
        for (int64_t bits = leaf; (bits & 1) != 0; bits >>= 1, left += level_floats_) {
          for (int64_t i = 0; i < floats; ++i) open[i] = left[i] + open[i];
        }
        if (leaf + 1 < leaves_) std::copy_n(open, floats, left);
      }
    });
  }

  Pool& pool_;
  const internal::WeightTile<W, A>& logits_tile_;
  const TileKernels& tile_;
  const HeadShape& shape_;
  const int64_t rows_;
  const HeadPart* const part_;
  const RowRange owned_;   // of the vocabulary
  const RowRange output_;  // of the hidden axis
  const W* panels_;
  const int64_t depth_;  // steps of a panel of the weights
  const W* columns_panels_;
  const int64_t columns_depth_;
  const std::span<const HeadUnit> units_;
  float* gradient_;
  const RowTiles tiles_, weight_tiles_;
  const int64_t hidden_panels_;
  const int leaves_;
  const int64_t level_floats_;
  const A* packed_ = nullptr;  // hidden, [tile][RowDepth(H)][rows of tile]
  float* columns_;             // hidden by units, see PackUnits
  float* dz_;                  // [panel of the block][rows][32]
  float* dz_packed_;           // [tile][column of the block][rows of tile]
  float* transposed_;          // [panel of H][column of the block][32]
  float* levels_;  // 3 levels of finished subtrees and the open chains: [panel of H][rows][32]
};

}  // namespace

void HeadChunks(Pool& pool, const HeadShape& shape, const float* hidden, int64_t ldh, int64_t rows,
                ConstPanels panels, int64_t first, int64_t count, const int32_t* targets,
                bool want_entropy, float* statistics, float* target_logits) {
  CheckShape(shape, rows, targets, panels);
  TITAN_CHECK(first % kRowSumChunk == 0 && count >= 0 && first + count <= shape.vocab);
  TITAN_CHECK(count % kRowSumChunk == 0 || first + count == shape.vocab);
  if (rows == 0 || count == 0) return;
  static_assert(sizeof(ChunkStatistics) == kHeadStatistics * sizeof(float));
  auto* chunks = reinterpret_cast<ChunkStatistics*>(statistics);
  internal::VisitTile(panels, shape.inputs, [&](const auto& tile, const auto* data) {
    ChunksOf(pool, tile, shape, hidden, ldh, rows, data, first, count, targets, want_entropy,
             chunks, target_logits);
  });
}

void HeadMerge(Pool& pool, const HeadShape& shape, int64_t rows, const float* statistics,
               const float* target_logits, float* log_prob, float* max, float* log_sum,
               float* entropy) {
  const auto* of = reinterpret_cast<const ChunkStatistics*>(statistics);
  const int64_t chunks = (shape.vocab + kRowSumChunk - 1) / kRowSumChunk;
  pool.Run(static_cast<int>((rows + kMergeRows - 1) / kMergeRows), [&](int task) {
    const int64_t end = std::min(rows, (task + 1) * kMergeRows);
    for (int64_t row = task * kMergeRows; row < end; ++row) {
      const MergedRow merged = Merge(of + row, chunks, rows);
      max[row] = merged.max;
      log_sum[row] = merged.log_sum;
      log_prob[row] = Canonical((target_logits[row] - merged.max) - merged.log_sum);
      if (entropy != nullptr) entropy[row] = Canonical(merged.log_sum - merged.mean);
    }
  });
}

void HeadLogProb(Pool& pool, const HeadShape& shape, const float* hidden, int64_t ldh, int64_t rows,
                 ConstPanels panels, const int32_t* targets, float* log_prob, float* max,
                 float* log_sum, float* entropy) {
  const int64_t chunks = (shape.vocab + kRowSumChunk - 1) / kRowSumChunk;
  // Of all chunks, then one target logit a row.
  float* statistics = ScratchFloats(Scratch::kStatistics, (kHeadStatistics * chunks + 1) * rows);
  float* target_logits = statistics + kHeadStatistics * chunks * rows;
  HeadChunks(pool, shape, hidden, ldh, rows, panels, 0, shape.vocab, targets, entropy != nullptr,
             statistics, target_logits);
  HeadMerge(pool, shape, rows, statistics, target_logits, log_prob, max, log_sum, entropy);
}

void HeadLogProbBackward(Pool& pool, const HeadShape& shape, const float* hidden, int64_t ldh,
                         int64_t rows, ConstPanels panels, const int32_t* targets, const float* dlp,
                         const float* max, const float* log_sum, std::span<const HeadUnit> units,
                         float* dhidden, int64_t ldd, float* panels_accumulator,
                         const HeadPart* part) {
  CheckShape(shape, rows, targets, panels);
  int64_t covered = 0;
  for (const HeadUnit& unit : units) {
    TITAN_CHECK(unit.first == covered && unit.count >= 0);
    covered += unit.count;
  }
  TITAN_CHECK(covered == rows);
  if (part != nullptr) {
    TITAN_CHECK(part->columns.element() == panels.element());
    TITAN_CHECK(part->hidden.begin % kPanelColumns == 0);
    TITAN_CHECK(part->vocabulary.begin % kRowSumChunk == 0 ||
                part->vocabulary.begin == part->vocabulary.end);
  }
  if (rows == 0) return;
  static_assert(sizeof(RowGradient) == 4 * sizeof(float));
  auto* of = reinterpret_cast<RowGradient*>(ScratchFloats(Scratch::kStatistics, 4 * rows));
  {
    const NumericThread environment;
    for (int64_t r = 0; r < rows; ++r) {
      of[r] = {max[r], log_sum[r], dlp[r] * shape.inv_temperature, targets[r]};
    }
  }
  internal::VisitTile(panels, shape.inputs, [&](const auto& tile, const auto* data) {
    HeadBackward(pool, tile, shape, rows, data, units, panels_accumulator, part)
        .Run(hidden, ldh, of, dhidden, ldd);
  });
}

int64_t HeadScratchFloats(const HeadShape& shape, int64_t rows) {
  const int64_t chunks = (shape.vocab + kRowSumChunk - 1) / kRowSumChunk;
  const int64_t width = PanelCount(shape.hidden) * kPanelColumns;
  // hidden twice, statistics, and of HeadBackward dz twice, four levels, a block of the weights.
  return rows * (2 * shape.hidden + kHeadStatistics * chunks + 1) +
         rows * (2 * kRowSumChunk + 4 * width) + kRowSumChunk * width;
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
