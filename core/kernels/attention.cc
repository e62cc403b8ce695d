// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/isa.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"
#include "core/kernels/transpose.h"

#ifndef TITAN_CORE_KERNELS_ATTENTION_TYPES_
#define TITAN_CORE_KERNELS_ATTENTION_TYPES_
namespace titan::kernels {

// One register tile of the forward: a few (row, head) pairs of one segment and kv head.
struct ForwardTile {
  const Segment* segment;
  int kv_head;
  int rows;
  int64_t first_pair;  // pair i is row i / group, head i % group of the kv head's group
};

struct ForwardArguments {
  const AttentionShape* shape;
  const float* q;
  const float* base;
  float* out;
  float* row_max;
  float* row_sum;
};

}  // namespace titan::kernels
#endif  // TITAN_CORE_KERNELS_ATTENTION_TYPES_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/attention-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

constexpr float kNoMaximum = -std::numeric_limits<float>::infinity();

// The running state of R rows; o rows are padded to whole vectors.
template <int R>
struct OnlineState {
  float max[R];
  float sum[R];
  alignas(64) float o[R * kMaxHeadDim];

  void Clear(int64_t width) {
    for (int r = 0; r < R; ++r) {
      max[r] = kNoMaximum;
      sum[r] = 0.0f;
      for (int64_t i = 0; i < width; ++i) o[r * width + i] = 0.0f;
    }
  }
};

// v with its first `count` > 0 lanes replaced.
HWY_INLINE FloatVec WithoutFirst(FloatVec v, int64_t count, FloatVec other) {
  if (count >= kLanes) return other;
  return hn::IfThenElse(hn::FirstN(FloatTag(), static_cast<size_t>(count)), other, v);
}

// Turns the scores of one row into weights in place and updates its maximum and sum. Returns alpha.
// Keys [from, count) are visible.
HWY_INLINE float SoftmaxBlock(float* s, int64_t from, int64_t count, bool first, float* max,
                              float* sum) {
  const FloatTag d;
  constexpr int64_t kVectors = kKeyBlock / kLanes;
  FloatVec score[kVectors];
  FloatVec largest = Broadcast(*max);
  for (int64_t v = 0; v < kVectors; ++v) {
    const int64_t left = count - v * kLanes;
    score[v] = Load(s + v * kLanes);
    if (left < kLanes) {
      score[v] = left <= 0 ? Broadcast(kNoMaximum)
                           : hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(left)), score[v],
                                            Broadcast(kNoMaximum));
    }
    const int64_t skipped = from - v * kLanes;
    if (skipped > 0) score[v] = WithoutFirst(score[v], skipped, Broadcast(kNoMaximum));
    largest = hn::IfThenElse(hn::Gt(score[v], largest), score[v], largest);
  }
  const float new_max = hn::GetLane(hn::MaxOfLanes(d, largest));
  const FloatVec subtract = Broadcast(new_max);
  for (int64_t v = 0; v < kVectors; ++v) {
    const int64_t left = count - v * kLanes;
    score[v] = left <= 0 ? hn::Zero(d) : VExp(hn::Sub(score[v], subtract));
    if (left > 0 && left < kLanes) {
      score[v] = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(left)), score[v]);
    }
    const int64_t skipped = from - v * kLanes;
    if (skipped > 0) score[v] = WithoutFirst(score[v], skipped, hn::Zero(d));
    Store(score[v], s + v * kLanes);
  }
  const float alpha = first ? 0.0f : DExp(*max - new_max);
  *sum = std::fma(*sum, alpha, Tree64(score));
  *max = new_max;
  return alpha;
}

template <int R>
void SegmentTile(const AttentionShape& shape, const ForwardTile& tile, const float* base,
                 const float* qs, const int64_t* lowest, const int64_t* visible, int64_t begin,
                 int64_t width, OnlineState<R>* state) {
  const int64_t head_dim = shape.head_dim;
  const int64_t page_floats = 2 * static_cast<int64_t>(shape.num_kv_heads) * head_dim * kPageTokens;
  const int64_t head_offset = static_cast<int64_t>(tile.kv_head) * 2 * head_dim * kPageTokens;
  const int64_t end = std::min(begin + kKeySegment, visible[R - 1]);
  state->Clear(width);
  alignas(64) float s[R * kKeyBlock] = {};
  const int64_t first_block = std::max(begin, lowest[0] / kKeyBlock * kKeyBlock);
  for (int64_t block = first_block; block < end; block += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, end - block);
    const int64_t num_pages = (keys + kPageTokens - 1) / kPageTokens;
    BlockPages pages;
    for (int64_t p = 0; p < num_pages; ++p) {
      pages.transposed[p] =
          base + tile.segment->pages[block / kPageTokens + p] * page_floats + head_offset;
      pages.plain[p] = pages.transposed[p] + head_dim * kPageTokens;
    }
    ScoreBlock<R>(qs, head_dim, head_dim, pages.transposed, num_pages, s);
    int64_t from[R], count[R];
    for (int r = 0; r < R; ++r) {
      from[r] = std::max<int64_t>(0, lowest[r] - block);
      count[r] = std::min(kKeyBlock, visible[r] - block);
      if (count[r] <= from[r]) continue;  // the row sees nothing of the block: it changes nothing
      const bool first = block == begin || block <= lowest[r];
      const float alpha =
          SoftmaxBlock(s + r * kKeyBlock, from[r], count[r], first, &state->max[r], &state->sum[r]);
      const FloatVec scale = Broadcast(alpha);
      float* o = state->o + r * width;
      for (int64_t i = 0; i < width; i += kLanes) Store(hn::Mul(Load(o + i), scale), o + i);
    }
    SumBlockRagged<R>(s, pages.plain, from, count, head_dim, state->o, width);
  }
}

template <int R>
void RunTile(const ForwardArguments& a, const ForwardTile& tile) {
  const AttentionShape& shape = *a.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t width = (head_dim + kPageTokens - 1) / kPageTokens * kPageTokens;
  const int group = shape.num_heads / shape.num_kv_heads;
  alignas(64) float qs[R * kMaxHeadDim];
  // Keys seen by the row are [lowest, visible); `at` is the index of (row, head) in [T][num_heads].
  int64_t lowest[R], visible[R], at[R];
  for (int r = 0; r < R; ++r) {
    const int64_t row = (tile.first_pair + r) / group;
    const int64_t head = tile.kv_head * group + (tile.first_pair + r) % group;
    visible[r] = tile.segment->first_position + row + 1;
    lowest[r] = FirstVisible(shape, visible[r] - 1);
    at[r] = (tile.segment->first_row + row) * shape.num_heads + head;
    const FloatVec scale = Broadcast(shape.scale);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      StorePart(hn::Mul(LoadPart(a.q + at[r] * head_dim + d, head_dim - d), scale),
                qs + r * head_dim + d, head_dim - d);
    }
  }
  OnlineState<R> total, next;
  const int64_t first_segment = lowest[0] / kKeySegment * kKeySegment;
  SegmentTile<R>(shape, tile, a.base, qs, lowest, visible, first_segment, width, &total);
  for (int64_t begin = first_segment + kKeySegment; begin < visible[R - 1]; begin += kKeySegment) {
    SegmentTile<R>(shape, tile, a.base, qs, lowest, visible, begin, width, &next);
    for (int r = 0; r < R; ++r) {
      if (visible[r] <= begin || lowest[r] >= begin + kKeySegment) continue;
      if (lowest[r] >= begin) {  // the row's first segment
        std::copy_n(next.o + r * width, width, total.o + r * width);
        total.max[r] = next.max[r];
        total.sum[r] = next.sum[r];
        continue;
      }
      const float max = next.max[r] > total.max[r] ? next.max[r] : total.max[r];
      const float x = DExp(total.max[r] - max), y = DExp(next.max[r] - max);
      total.sum[r] = std::fma(total.sum[r], x, next.sum[r] * y);
      const FloatVec xs = Broadcast(x), ys = Broadcast(y);
      float* o = total.o + r * width;
      for (int64_t i = 0; i < width; i += kLanes) {
        Store(hn::MulAdd(Load(next.o + r * width + i), ys, hn::Mul(Load(o + i), xs)), o + i);
      }
      total.max[r] = max;
    }
  }
  if (shape.sinks != nullptr) {
    for (int r = 0; r < R; ++r) {
      const float sink = shape.sinks[at[r] % shape.num_heads];
      const float max = sink > total.max[r] ? sink : total.max[r];
      const float x = DExp(total.max[r] - max), y = DExp(sink - max);
      total.sum[r] = std::fma(total.sum[r], x, y);
      float* o = total.o + r * width;
      for (int64_t i = 0; i < width; i += kLanes) {
        const FloatVec kept = hn::Mul(Load(o + i), Broadcast(x));
        Store(hn::MulAdd(hn::Zero(FloatTag()), Broadcast(y), kept), o + i);
      }
      total.max[r] = max;
    }
  }
  for (int r = 0; r < R; ++r) {
    const FloatVec inverse = Broadcast(1.0f / total.sum[r]);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      StorePart(hn::Mul(Load(total.o + r * width + d), inverse), a.out + at[r] * head_dim + d,
                head_dim - d);
    }
    if (a.row_max != nullptr) a.row_max[at[r]] = total.max[r] + 0.0f;
    if (a.row_sum != nullptr) a.row_sum[at[r]] = total.sum[r];
  }
}

void RunForwardTile(const ForwardArguments& arguments, const ForwardTile& tile) {
  WithRows(tile.rows, [&](auto rows) { RunTile<decltype(rows)::value>(arguments, tile); });
}

int ForwardTileRows(int64_t left) { return NextTileRows(left); }

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {

void CheckShape(const AttentionShape& shape) {
  TITAN_CHECK(shape.head_dim >= 1 && shape.head_dim <= kMaxHeadDim);
  TITAN_CHECK(shape.num_kv_heads >= 1 && shape.num_heads % shape.num_kv_heads == 0);
  TITAN_CHECK(shape.window >= 0);
}

int64_t PageFloats(const AttentionShape& shape) {
  return 2 * static_cast<int64_t>(shape.num_kv_heads) * shape.head_dim * kPageTokens;
}

int64_t NumPages(int64_t num_positions) { return (num_positions + kPageTokens - 1) / kPageTokens; }

void WriteKv(Pool& pool, const AttentionShape& shape, const float* k, const float* v,
             std::span<const Segment> segments, float* base) {
  CheckShape(shape);
  const int64_t head_dim = shape.head_dim, width = shape.num_kv_heads * head_dim;
  // One task a page: a page is written by one segment.
  struct Part {
    const Segment* segment;
    int64_t begin, end;  // positions
  };
  std::vector<Part> parts;
  for (const Segment& segment : segments) {
    int64_t begin = segment.first_position;
    if (segment.parent >= 0) {
      const Segment& parent = segments[segment.parent];
      TITAN_CHECK(parent.parent < 0 && parent.num_rows == begin && parent.first_position == 0);
      begin = begin / kPageTokens * kPageTokens;
    }
    const int64_t end = segment.first_position + segment.num_rows;
    while (begin < end) {
      const int64_t next = std::min(end, (begin / kPageTokens + 1) * kPageTokens);
      parts.push_back({&segment, begin, next});
      begin = next;
    }
  }
  pool.Run(static_cast<int>(parts.size()), [&](int task) {
    const auto& [segment, begin, end] = parts[static_cast<size_t>(task)];
    float* page = base + segment->pages[begin / kPageTokens] * PageFloats(shape);
    for (int64_t position = begin; position < end;) {
      // The parent's rows, then the segment's own.
      const int64_t own = position - segment->first_position;
      const int64_t row =
          own < 0 ? segments[segment->parent].first_row + position : segment->first_row + own;
      const int64_t count =
          own < 0 ? std::min<int64_t>(end, segment->first_position) - position : end - position;
      const int64_t slot = position % kPageTokens;
      for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
        float* keys = page + h * 2 * head_dim * kPageTokens;
        float* values = keys + (kPageTokens + slot) * head_dim;
        const int64_t from = row * width + h * head_dim;
        internal::TransposeFloats(k + from, width, head_dim, count, keys + slot, kPageTokens);
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(values + i * head_dim, v + from + i * width,
                      static_cast<size_t>(head_dim) * sizeof(float));
        }
      }
      position += count;
    }
  });
}

void AttentionForward(Pool& pool, const AttentionShape& shape, const float* q,
                      std::span<const Segment> segments, const float* base, float* out,
                      float* row_max, float* row_sum) {
  CheckShape(shape);
  const auto tile_rows = TITAN_DISPATCH(ForwardTileRows);
  const int group = shape.num_heads / shape.num_kv_heads;
  std::vector<ForwardTile> tiles;
  for (const Segment& segment : segments) {
    const int64_t pairs = static_cast<int64_t>(segment.num_rows) * group;
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      for (int64_t first = 0; first < pairs;) {
        const int rows = tile_rows(pairs - first);
        tiles.push_back({&segment, h, rows, first});
        first += rows;
      }
    }
  }
  const ForwardArguments arguments{&shape, q, base, out, row_max, row_sum};
  const auto run = TITAN_DISPATCH(RunForwardTile);
  pool.Run(static_cast<int>(tiles.size()), [&](int task) { run(arguments, tiles[task]); });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
