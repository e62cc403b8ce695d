// SPDX-License-Identifier: Apache-2.0
//
// Causal grouped-query attention over paged keys and values (numerics.md sections 5 and 7): one
// arithmetic order for decode, prefill, chunked prefill and the trainer's packed forward. F32
// cache.
//
// Pages. A page holds 16 consecutive positions of one sequence: per kv head, keys transposed
// [head_dim][16], then values [16][head_dim]. Page p lies at base + p * PageFloats(shape). Slots
// that were never written are never part of an output.
//
// Forward order, for the query row at position t (keys 0..t are visible) and head h, which uses kv
// head h / (num_heads / num_kv_heads); qs_d = q_d * scale.
//   Segments of 512 keys from position 0. A segment starts with m = -inf, l = +0, o = +0 and runs
//   its blocks of 64 keys ascending:
//     s_j   = chain over d ascending of fma(qs_d, k_jd, acc) from +0
//     mx    = maximum of m and the visible s_j
//     p_j   = DExp(s_j - mx), +0 in the lanes of invisible keys
//     L     = tree 32, 16, ..., 1 over the 64 lanes (lane j += lane j + h)
//     alpha = +0 in the segment's first block, else DExp(m - mx)
//     l     = fma(l, alpha, L)
//     o_d   = o_d * alpha, then the chain over visible j ascending of fma(p_j, v_jd, o_d)
//     m     = mx
//   Segments merge ascending: M = max(m_a, m_b), x = DExp(m_a - M), y = DExp(m_b - M),
//   l = fma(l_a, x, l_b * y), o_d = fma(o_b, y, o_a * x). Blocks and segments without a visible key
//   change nothing. Result o_d * (1 / l); row_max = m (-0 as +0), row_sum = l.
//   With a window W only the keys t - W + 1 .. t are visible, the token itself counted. A head with
//   a sink merges it last, as a segment with m = sink, l = 1, o = +0; row_max and row_sum are those
//   after it.
//
// Backward order (out, row_max, row_sum as the forward gave them):
//   D    = RowSumProduct(dout, out) over head_dim; rl = 1 / row_sum
//   p_j  = DExp(s_j - row_max) * rl with the forward's s_j
//   dp_j = chain over d ascending of fma(dout_d, v_jd, acc) from +0
//   ds_j = p_j * (dp_j - D)
//   dq_d = (chain over keys ascending of fma(ds_j, k_jd, acc) from +0) * scale
//   dk_jd: per query head the chain over queries ascending of fma(ds_ij, qs_id, acc) from +0; then
//   the heads of the group are added ascending, ((h0 + h1) + h2) ...; dv_jd likewise with fma(p_ij,
//   dout_id, acc).
//   Keys of a shared prefix: the segments that continue it give such a sum each, added in the order
//   of the segments, ((c0 + c1) + c2) ...; then + the sum of the prefix's own queries.
//
// Shapes: q, out, dout, dq [T][num_heads * head_dim]; k, v, dk, dv [T][num_kv_heads * head_dim];
// row_max, row_sum [T][num_heads]. Outputs must not overlap inputs. Pointers need no alignment.
// Forward tasks are tiles of rows of one segment and kv head; a backward task is one segment, or
// one prefix with all that continue it, and one kv head (working memory of a task: at most 8 floats
// a key of its longest sequence and channel). head_dim 1..256 (checked).
#ifndef TITAN_CORE_KERNELS_ATTENTION_H_
#define TITAN_CORE_KERNELS_ATTENTION_H_

#include <cstdint>
#include <span>

#include "core/kernels/units.h"

namespace titan::kernels {

class Pool;

struct AttentionShape {
  int num_heads = 0;
  int num_kv_heads = 0;  // divides num_heads
  int head_dim = 0;
  float scale = 0.0f;
  int64_t window = 0;            // visible keys of a row, itself counted; 0: all before it
  const float* sinks = nullptr;  // [num_heads], finite; null: none
};

// The first key that the row at position t sees.
constexpr int64_t FirstVisible(const AttentionShape& shape, int64_t t) {
  return shape.window > 0 && t + 1 > shape.window ? t + 1 - shape.window : 0;
}

inline constexpr int kMaxHeadDim = 256;

// Rows [first_row, first_row + num_rows) of the batch are positions first_position, ... of one
// sequence. pages[i] is the id of the page that holds positions 16i..16i+15 of that sequence, from
// position 0; a shared prefix is page ids that several segments list. Keys of earlier positions
// must already be there, or come with the same call: `parent` is the index, among the call's
// segments, of one that holds exactly the positions 0 .. first_position - 1 and has no parent
// itself. Pages that those positions fill are then the parent's; the page that they fill in part is
// this segment's own.
struct Segment {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;
  const int32_t* pages = nullptr;
  int32_t parent = -1;  // -1: none
};

// Checked by every function here: head_dim 1..256, num_kv_heads divides num_heads, a window of at
// least 0.
void CheckShape(const AttentionShape& shape);

// Floats of one page of one layer: 2 * num_kv_heads * head_dim * 16.
int64_t PageFloats(const AttentionShape& shape);
// Pages that a sequence of num_positions needs.
int64_t NumPages(int64_t num_positions);

// Stores the rows' keys (after rope) and values into the segments' pages; a parent's last positions
// also into the page that a child begins in. Segments must not write the same position of the same
// page.
void WriteKv(Pool& pool, const AttentionShape& shape, const float* k, const float* v,
             std::span<const Segment> segments, float* base);

// row_max and row_sum may both be null (generation).
void AttentionForward(Pool& pool, const AttentionShape& shape, const float* q,
                      std::span<const Segment> segments, const float* base, float* out,
                      float* row_max, float* row_sum);

// REQUIRES: every segment has its own pages and first_position 0, or a parent. dq, dk, dv are
// written for the segments' rows.
void AttentionBackward(Pool& pool, const AttentionShape& shape, const float* q,
                       std::span<const Segment> segments, const float* base, const float* out,
                       const float* dout, const float* row_max, const float* row_sum, float* dq,
                       float* dk, float* dv);

// Gradient of the sinks: per unit and head the chain over the unit's rows ascending from +0 of
// fma(DExp(sink - row_max) * (1 / row_sum), -D, acc), D = RowSumProduct(dout, out) of the row and
// head; dsinks[h] = dsinks[h] + chain, units in the order given. REQUIRES: shape.sinks.
void SinkGradient(Pool& pool, const AttentionShape& shape, const float* out, const float* dout,
                  const float* row_max, const float* row_sum, std::span<const RowRange> units,
                  float* dsinks);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_ATTENTION_H_
