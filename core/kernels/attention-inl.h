// SPDX-License-Identifier: Apache-2.0
//
// Register tiles of attention for one Highway target: scores of R query rows against the pages of
// one key block, the weighted sums over values, and the outer-product updates of the backward.
// Included by attention.cc and attention_backward.cc between their target guards. R rows share each
// load of a page. Lanes are keys (scores) or channels (sums); every chain of attention.h runs whole
// inside one lane.
#if defined(TITAN_CORE_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TITAN_CORE_KERNELS_ATTENTION_INL_H_
#undef TITAN_CORE_KERNELS_ATTENTION_INL_H_
#else
#define TITAN_CORE_KERNELS_ATTENTION_INL_H_
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/kernels/attention.h"
#include "core/kernels/elementary-inl.h"
#include "core/kernels/order.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// Rows of a register tile: with two vectors of keys or channels per row the sums stay in registers.
inline constexpr int kTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
inline constexpr int64_t kPagesPerBlock = kKeyBlock / kPageTokens;
inline constexpr int64_t kVectorsPerPage = kPageTokens / kLanes;

// Where the pages of one key block lie for one kv head: [head_dim][16] for scores, [16][head_dim]
// for sums.
struct BlockPages {
  const float* transposed[kPagesPerBlock];
  const float* plain[kPagesPerBlock];
};

// Rows of the next tile when `left` remain: 8 (with AVX-512), 4, or what is left. Few sizes,
// because each is compiled as code of its own.
HWY_INLINE int NextTileRows(int64_t left) {
  if (left >= kTileRows) return kTileRows;
  return left >= 4 ? 4 : static_cast<int>(left);
}

// Calls body(std::integral_constant<int, R>) with R = rows, a result of NextTileRows.
template <typename Body>
HWY_INLINE void WithRows(int rows, const Body& body) {
  switch (rows) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    case 3:
      return body(std::integral_constant<int, 3>());
    case 4:
      return body(std::integral_constant<int, 4>());
    default:
      return body(std::integral_constant<int, kTileRows>());
  }
}

// s[r][.] = chain over d of fma(x[r][d], key[d][.], acc) for V vectors of 16-key pages; x rows are
// ldx apart, s rows 64 apart.
template <int R, int V>
HWY_INLINE void ScoreTile(const float* x, int64_t ldx, int64_t head_dim,
                          const float* const (&keys)[V], float* const (&s)[V]) {
  FloatVec acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) acc[r][v] = hn::Zero(FloatTag());
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    FloatVec key[V];
    for (int v = 0; v < V; ++v) key[v] = Load(keys[v] + d * kPageTokens);
    for (int r = 0; r < R; ++r) {
      const FloatVec value = Broadcast(x[r * ldx + d]);
      for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(value, key[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) Store(acc[r][v], s[v] + r * kKeyBlock);
  }
}

// s[r][0..16 * num_pages) for R rows; columns beyond are left alone.
template <int R>
HWY_INLINE void ScoreBlock(const float* x, int64_t ldx, int64_t head_dim, const float* const* pages,
                           int64_t num_pages, float* s) {
  if constexpr (kVectorsPerPage == 1) {
    int64_t p = 0;
    for (; p + 2 <= num_pages; p += 2) {
      const float* const keys[2] = {pages[p], pages[p + 1]};
      float* const to[2] = {s + p * kPageTokens, s + (p + 1) * kPageTokens};
      ScoreTile<R, 2>(x, ldx, head_dim, keys, to);
    }
    if (p < num_pages) {
      const float* const keys[1] = {pages[p]};
      float* const to[1] = {s + p * kPageTokens};
      ScoreTile<R, 1>(x, ldx, head_dim, keys, to);
    }
  } else {
    for (int64_t p = 0; p < num_pages; ++p) {
      const float* const keys[2] = {pages[p], pages[p] + kLanes};
      float* const to[2] = {s + p * kPageTokens, s + p * kPageTokens + kLanes};
      ScoreTile<R, 2>(x, ldx, head_dim, keys, to);
    }
  }
}

// o[r][.] = chain over keys j in [begin, end) of the block, ascending, of fma(w[r][j], value[j][.],
// o[r][.]) for V vectors of channels from `channel`; `last` channels exist in the last vector. w
// rows are 64 apart, o rows ldo apart and padded to whole vectors.
template <int R, int V>
HWY_INLINE void SumTile(const float* w, const float* const* pages, int64_t begin, int64_t end,
                        int64_t head_dim, int64_t channel, int64_t last, float* o, int64_t ldo) {
  FloatVec acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) acc[r][v] = Load(o + r * ldo + channel + v * kLanes);
  }
  for (int64_t j = begin; j < end; ++j) {
    const float* row = pages[j / kPageTokens] + (j % kPageTokens) * head_dim + channel;
    FloatVec value[V];
    for (int v = 0; v + 1 < V; ++v) value[v] = Load(row + v * kLanes);
    value[V - 1] = LoadPart(row + (V - 1) * kLanes, last);
    for (int r = 0; r < R; ++r) {
      const FloatVec weight = Broadcast(w[r * kKeyBlock + j]);
      for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(weight, value[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) Store(acc[r][v], o + r * ldo + channel + v * kLanes);
  }
}

template <int R>
HWY_INLINE void SumBlock(const float* w, const float* const* pages, int64_t begin, int64_t end,
                         int64_t head_dim, float* o, int64_t ldo) {
  int64_t channel = 0;
  for (; channel + 2 * kLanes <= head_dim; channel += 2 * kLanes) {
    SumTile<R, 2>(w, pages, begin, end, head_dim, channel, kLanes, o, ldo);
  }
  for (; channel < head_dim; channel += kLanes) {
    SumTile<R, 1>(w, pages, begin, end, head_dim, channel, head_dim - channel, o, ldo);
  }
}

// As SumBlock for rows that see different keys: row r takes keys [from[r], to[r]), both ascending
// in r; to[r] may lie before from[r].
template <int R>
HWY_INLINE void SumBlockRagged(const float* w, const float* const* pages, const int64_t* from,
                               const int64_t* to, int64_t head_dim, float* o, int64_t ldo) {
  int64_t common = 0;  // keys from 0 that all rows take
  if (from[R - 1] <= 0) {
    common = kKeyBlock;
    for (int r = 0; r < R; ++r) common = to[r] < common ? to[r] : common;
    if (common > 0) SumBlock<R>(w, pages, 0, common, head_dim, o, ldo);
    if (common < 0) common = 0;
  }
  for (int r = 0; r < R; ++r) {
    const int64_t begin = from[r] > common ? from[r] : common;
    if (to[r] > begin) {
      SumBlock<1>(w + r * kKeyBlock, pages, begin, to[r], head_dim, o + r * ldo, ldo);
    }
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#endif  // TITAN_CORE_KERNELS_ATTENTION_INL_H_
