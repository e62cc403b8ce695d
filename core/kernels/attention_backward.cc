// SPDX-License-Identifier: Apache-2.0
//
// The backward of attention.h. One task owns one family (a segment and those that continue it) and
// one kv head, so every chain of dk and dv stays in one thread. Keys and values of the segment are
// first laid out both ways (transposed and plain), in pages of 16, because scores want keys in
// lanes and sums want channels in lanes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/attention.h"
#include "core/kernels/isa.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"
#include "core/kernels/transpose.h"

#ifndef TITAN_CORE_KERNELS_ATTENTION_BACKWARD_TYPES_
#define TITAN_CORE_KERNELS_ATTENTION_BACKWARD_TYPES_
namespace titan::kernels {

struct BackwardArguments {
  const AttentionShape* shape;
  const float* q;
  const float* base;
  const float* out;
  const float* dout;
  const float* row_max;
  const float* row_sum;
  float* dq;
  float* dk;
  float* dv;
};

// A segment from position 0 and the segments whose parent it is, in their order.
struct Family {
  const Segment* root;
  std::vector<const Segment*> children;
  int64_t num_rows;  // of all
};

}  // namespace titan::kernels
#endif  // TITAN_CORE_KERNELS_ATTENTION_BACKWARD_TYPES_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention_backward.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/attention-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// gradient[j][.] = chain over rows r in [first[j], last[j]) ascending of fma(w[r][j], x[r][.],
// gradient[j][.]) for keys j in [0, keys) of the block; rows of x and of gradient are `width`
// apart, padded to whole vectors.
template <int R>
HWY_INLINE void OuterBlock(const float* w, const float* x, const int64_t* first,
                           const int64_t* last, int64_t keys, int64_t width, float* gradient) {
  for (int64_t channel = 0; channel < width; channel += kLanes) {
    FloatVec row[R];
    for (int r = 0; r < R; ++r) row[r] = Load(x + r * width + channel);
    for (int64_t j = 0; j < keys; ++j) {
      float* place = gradient + j * width + channel;
      FloatVec acc = Load(place);
      if (HWY_LIKELY(first[j] == 0 && last[j] >= R)) {
        for (int r = 0; r < R; ++r) acc = hn::MulAdd(Broadcast(w[r * kKeyBlock + j]), row[r], acc);
      } else {
        for (int r = 0; r < R; ++r) {
          if (r >= first[j] && r < last[j])
            acc = hn::MulAdd(Broadcast(w[r * kKeyBlock + j]), row[r], acc);
        }
      }
      Store(acc, place);
    }
  }
}

// What one task works on. Pages are of the sequence at hand, its prefix's first.
struct HeadScratch {
  std::vector<float> keys_plain;         // [pages][16][head_dim]
  std::vector<float> values_transposed;  // [pages][head_dim][16]
  std::vector<const float*> keys_t, keys_p, values_t;
  std::vector<float> dk, dv;  // [keys padded to 16][width], of one query head
  int64_t width;
};

// For a sequence of the segment whose first `kept` pages were laid out before.
void LayOut(const BackwardArguments& a, const Segment& segment, int64_t kv_head, int64_t kept,
            HeadScratch* scratch) {
  const int64_t head_dim = a.shape->head_dim;
  const int64_t page_floats =
      2 * static_cast<int64_t>(a.shape->num_kv_heads) * head_dim * kPageTokens;
  const int64_t half = head_dim * kPageTokens;
  const int64_t num_pages = NumPages(segment.first_position + segment.num_rows);
  for (int64_t p = kept; p < num_pages; ++p) {
    const float* keys = a.base + segment.pages[p] * page_floats + kv_head * 2 * half;
    const float* values = keys + half;
    float* plain = scratch->keys_plain.data() + p * half;
    float* transposed = scratch->values_transposed.data() + p * half;
    internal::TransposeFloats(keys, kPageTokens, kPageTokens, head_dim, plain, head_dim);
    internal::TransposeFloats(values, head_dim, head_dim, kPageTokens, transposed, kPageTokens);
    scratch->keys_t[p] = keys;
    scratch->keys_p[p] = plain;
    scratch->values_t[p] = transposed;
  }
}

HeadScratch ScratchFor(const BackwardArguments& a, const Family& family) {
  const int64_t head_dim = a.shape->head_dim;
  int64_t keys = family.root->num_rows;
  for (const Segment* child : family.children) {
    keys = std::max<int64_t>(keys, child->first_position + child->num_rows);
  }
  const int64_t num_pages = NumPages(keys);
  HeadScratch scratch;
  scratch.width = (head_dim + kPageTokens - 1) / kPageTokens * kPageTokens;
  scratch.keys_plain.resize(num_pages * kPageTokens * head_dim);
  scratch.values_transposed.resize(num_pages * kPageTokens * head_dim);
  scratch.keys_t.resize(num_pages);
  scratch.keys_p.resize(num_pages);
  scratch.values_t.resize(num_pages);
  scratch.dk.resize(num_pages * kPageTokens * scratch.width);
  scratch.dv.resize(num_pages * kPageTokens * scratch.width);
  return scratch;
}

// Rows i .. i+R-1 of one query head: dq of the rows, and their terms of the head's dk and dv
// chains.
template <int R>
void BackwardTile(const BackwardArguments& a, const Segment& segment, int64_t head, int64_t i,
                  HeadScratch* scratch) {
  const int64_t head_dim = a.shape->head_dim, width = scratch->width;
  alignas(64) float qs[R * kMaxHeadDim] = {}, dout[R * kMaxHeadDim] = {}, dq[R * kMaxHeadDim] = {};
  float max[R], inverse[R], delta[R];
  int64_t at[R];
  const FloatVec scale = Broadcast(a.shape->scale);
  for (int r = 0; r < R; ++r) {
    const int64_t row = segment.first_row + i + r;
    const int64_t pair = row * a.shape->num_heads + head;
    at[r] = pair * head_dim;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const int64_t left = head_dim - d;
      StorePart(hn::Mul(LoadPart(a.q + at[r] + d, left), scale), qs + r * width + d, left);
      StorePart(LoadPart(a.dout + at[r] + d, left), dout + r * width + d, left);
    }
    max[r] = a.row_max[pair];
    inverse[r] = 1.0f / a.row_sum[pair];
    delta[r] = RowSumProductVector(a.dout + at[r], a.out + at[r], head_dim);
  }
  const int64_t position = segment.first_position + i;  // of the first row
  const int64_t visible = position + R;                 // keys that the last row sees
  alignas(64) float p[R * kKeyBlock], ds[R * kKeyBlock];
  const int64_t lowest = FirstVisible(*a.shape, position);  // of the first row
  for (int64_t block = lowest / kKeyBlock * kKeyBlock; block < visible; block += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, visible - block);
    const int64_t first_page = block / kPageTokens,
                  num_pages = (keys + kPageTokens - 1) / kPageTokens;
    ScoreBlock<R>(qs, width, head_dim, scratch->keys_t.data() + first_page, num_pages, p);
    ScoreBlock<R>(dout, width, head_dim, scratch->values_t.data() + first_page, num_pages, ds);
    int64_t from[R], count[R], first[kKeyBlock], last[kKeyBlock];
    for (int r = 0; r < R; ++r) {
      from[r] = std::max<int64_t>(0, FirstVisible(*a.shape, position + r) - block);
      count[r] = std::min(kKeyBlock, position + r + 1 - block);
      const FloatVec row_max = Broadcast(max[r]), row_inverse = Broadcast(inverse[r]);
      const FloatVec row_delta = Broadcast(delta[r]);
      for (int64_t j = 0; j < num_pages * kPageTokens; j += kLanes) {
        float* p_at = p + r * kKeyBlock + j;
        float* ds_at = ds + r * kKeyBlock + j;
        const FloatVec weight = hn::Mul(VExp(hn::Sub(Load(p_at), row_max)), row_inverse);
        Store(weight, p_at);
        Store(hn::Mul(weight, hn::Sub(Load(ds_at), row_delta)), ds_at);
      }
    }
    for (int64_t j = 0; j < keys; ++j) {
      first[j] = std::max<int64_t>(0, block + j - position);
      last[j] = a.shape->window > 0 ? block + j + a.shape->window - position : R;
    }
    SumBlockRagged<R>(ds, scratch->keys_p.data() + first_page, from, count, head_dim, dq, width);
    OuterBlock<R>(ds, qs, first, last, keys, width, scratch->dk.data() + block * width);
    OuterBlock<R>(p, dout, first, last, keys, width, scratch->dv.data() + block * width);
  }
  for (int r = 0; r < R; ++r) {
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      StorePart(hn::Mul(Load(dq + r * width + d), scale), a.dq + at[r] + d, head_dim - d);
    }
  }
}

// to[j][.] = from[j][.] for the first term of a sum, else to + from.
void AddTerm(const float* from, int64_t rows, int64_t width, int64_t head_dim, bool first,
             float* to, int64_t ldto) {
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const FloatVec value = Load(from + j * width + d);
      float* place = to + j * ldto + d;
      StorePart(first ? value : hn::Add(LoadPart(place, head_dim - d), value), place, head_dim - d);
    }
  }
}

// The sums over the heads of one segment: its own keys into dk and dv, those of its prefix into
// prefix_dk and prefix_dv ([first_position][width]).
void BackwardSegment(const BackwardArguments& a, const Segment& segment, int64_t kv_head,
                     HeadScratch* scratch, float* prefix_dk, float* prefix_dv) {
  const int64_t head_dim = a.shape->head_dim, width = scratch->width;
  const int64_t group = a.shape->num_heads / a.shape->num_kv_heads;
  const int64_t ldkv = a.shape->num_kv_heads * head_dim;
  const int64_t prefix = segment.first_position;
  const int64_t keys = prefix + segment.num_rows;
  const int64_t at = segment.first_row * ldkv + kv_head * head_dim;
  for (int64_t h = 0; h < group; ++h) {
    std::fill_n(scratch->dk.begin(), keys * width, 0.0f);
    std::fill_n(scratch->dv.begin(), keys * width, 0.0f);
    for (int64_t i = 0; i < segment.num_rows;) {
      const int rows = NextTileRows(segment.num_rows - i);
      WithRows(rows, [&](auto count) {
        BackwardTile<decltype(count)::value>(a, segment, kv_head * group + h, i, scratch);
      });
      i += rows;
    }
    const float* dk = scratch->dk.data();
    const float* dv = scratch->dv.data();
    AddTerm(dk, prefix, width, width, h == 0, prefix_dk, width);
    AddTerm(dv, prefix, width, width, h == 0, prefix_dv, width);
    AddTerm(dk + prefix * width, segment.num_rows, width, head_dim, h == 0, a.dk + at, ldkv);
    AddTerm(dv + prefix * width, segment.num_rows, width, head_dim, h == 0, a.dv + at, ldkv);
  }
}

// One unit's chain of one head's sink.
float SinkChain(const AttentionShape& shape, int64_t head, const float* out, const float* dout,
                const float* row_max, const float* row_sum, const RowRange& unit) {
  float chain = 0.0f;
  for (int64_t row = unit.begin; row < unit.end; ++row) {
    const int64_t at = row * shape.num_heads + head;
    const float delta =
        RowSumProductVector(dout + at * shape.head_dim, out + at * shape.head_dim, shape.head_dim);
    const float share = DExp(shape.sinks[head] - row_max[at]) * (1.0f / row_sum[at]);
    chain = std::fma(share, -delta, chain);
  }
  return chain;
}

void BackwardFamily(const BackwardArguments& a, const Family& family, int64_t kv_head) {
  HeadScratch scratch = ScratchFor(a, family);
  const Segment& root = *family.root;
  if (family.children.empty()) {
    LayOut(a, root, kv_head, 0, &scratch);
    return BackwardSegment(a, root, kv_head, &scratch, nullptr, nullptr);
  }
  const int64_t head_dim = a.shape->head_dim, width = scratch.width;
  const size_t floats = static_cast<size_t>(root.num_rows * width);
  std::vector<float> child_dk(floats), child_dv(floats), sum_dk(floats), sum_dv(floats);
  int64_t kept = 0;
  for (const Segment* child : family.children) {
    LayOut(a, *child, kv_head, kept, &scratch);
    kept = root.num_rows / kPageTokens;  // pages that all of the family list
    BackwardSegment(a, *child, kv_head, &scratch, child_dk.data(), child_dv.data());
    const bool first = child == family.children.front();
    AddTerm(child_dk.data(), root.num_rows, width, width, first, sum_dk.data(), width);
    AddTerm(child_dv.data(), root.num_rows, width, width, first, sum_dv.data(), width);
  }
  LayOut(a, root, kv_head, kept, &scratch);
  BackwardSegment(a, root, kv_head, &scratch, nullptr, nullptr);
  const int64_t ldkv = a.shape->num_kv_heads * head_dim;
  const int64_t at = root.first_row * ldkv + kv_head * head_dim;
  AddTerm(sum_dk.data(), root.num_rows, width, head_dim, false, a.dk + at, ldkv);
  AddTerm(sum_dv.data(), root.num_rows, width, head_dim, false, a.dv + at, ldkv);
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

std::vector<Family> FamiliesOf(std::span<const Segment> segments) {
  std::vector<Family> families;
  std::vector<size_t> family_of(segments.size(), 0);
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    if (segment.parent >= 0) continue;
    TITAN_CHECK(segment.first_position == 0);
    family_of[i] = families.size();
    families.push_back({&segment, {}, segment.num_rows});
  }
  for (const Segment& segment : segments) {
    if (segment.parent < 0) continue;
    const Segment& parent = segments[segment.parent];
    TITAN_CHECK(parent.parent < 0 && parent.num_rows == segment.first_position);
    Family& family = families[family_of[segment.parent]];
    family.children.push_back(&segment);
    family.num_rows += segment.num_rows;
  }
  return families;
}

}  // namespace

void AttentionBackward(Pool& pool, const AttentionShape& shape, const float* q,
                       std::span<const Segment> segments, const float* base, const float* out,
                       const float* dout, const float* row_max, const float* row_sum, float* dq,
                       float* dk, float* dv) {
  CheckShape(shape);
  const BackwardArguments arguments{&shape, q, base, out, dout, row_max, row_sum, dq, dk, dv};
  const auto run = TITAN_DISPATCH(BackwardFamily);
  // Longest first, so that the last tasks are short; the order of tasks changes no bit.
  std::vector<Family> families = FamiliesOf(segments);
  std::stable_sort(families.begin(), families.end(),
                   [](const Family& x, const Family& y) { return x.num_rows > y.num_rows; });
  pool.Run(static_cast<int>(families.size()) * shape.num_kv_heads, [&](int task) {
    run(arguments, families[task / shape.num_kv_heads], task % shape.num_kv_heads);
  });
}

void SinkGradient(Pool& pool, const AttentionShape& shape, const float* out, const float* dout,
                  const float* row_max, const float* row_sum, std::span<const RowRange> units,
                  float* dsinks) {
  TITAN_CHECK(shape.sinks != nullptr);
  pool.Run(shape.num_heads, [&](int head) {
    for (const RowRange& unit : units) {
      dsinks[head] =
          dsinks[head] + TITAN_DISPATCH(SinkChain)(shape, head, out, dout, row_max, row_sum, unit);
    }
  });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
