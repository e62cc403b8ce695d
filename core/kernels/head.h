// SPDX-License-Identifier: Apache-2.0
//
// Output head fused with the log-prob of given targets, forward and backward, without logits of
// [rows][vocab] in memory (numerics contract, sections 2, 3 and 7).
//
// Forward, per row r, with z_j = logit_j * invT, logit = Linear(hidden[r], head, leaves):
//   m      = maximum over j of z_j (NaN ignored, -0 as +0)
//   chunk c of 1024 columns: m_c its maximum, s_c = row sum of DExp(z_j - m_c)
//   S      = chain over ascending chunks, from +0, of fma(s_c, DExp(m_c - m), S)
//   lp     = (z_target - m) - DLog(S)
//   entropy, when asked for: b_c = row sum with fma of DExp(z_j - m_c) and z_j - m_c (that term is
//   left
//            out where the exponential is 0);
//            B = chain over ascending chunks, from +0, of fma(fma(s_c, m_c - m, b_c), DExp(m_c -
//            m), B); entropy = DLog(S) - B / S
// A chunk of -infinity only is skipped. A row with NaN or +infinity gives the canonical quiet NaN.
//
// Backward, with g = dlp[r] * invT:
//   p_j        = DExp((z_j - m) - log_sum), z_j recomputed by the forward's order
//   dz_j       = g * ((j == target ? 1 : 0) - p_j)
//   dhidden[r] = Linear(dz[r], head transposed) over j with leaves = LeafCount(vocab, 0)
//   dW         per unit, in order: chain over the unit's rows from +0 of fma(hidden[r], dz[r],
//   acc), then
//              accumulator = accumulator + chain (LinearWeightGradient)
// Rows that the loss masks out are not passed, and so are in no chain. bfloat16 panels are
// upconverted exactly wherever they are read; all gradients are f32.
//
// Thread-safety: as linear.h. Working memory, kept per calling thread: forward rows * hidden floats
// and 1 MiB per thread; backward about rows * (7 * hidden + 2048) floats.
#ifndef TITAN_CORE_KERNELS_HEAD_H_
#define TITAN_CORE_KERNELS_HEAD_H_

#include <cstdint>
#include <span>

#include "core/kernels/panels.h"
#include "core/kernels/pool.h"
#include "core/kernels/units.h"

namespace titan::kernels {

struct HeadShape {
  int64_t vocab = 0;
  int64_t hidden = 0;
  int leaves = 1;                // of the forward: LeafCount(hidden, 0)
  float inv_temperature = 1.0f;  // invT = f32(1 / T)
  // kBf16 (mode BF16, bfloat16 panels): hidden is rounded wherever it is multiplied, forward and
  // backward; dhidden goes straight through the rounding.
  Inputs inputs = Inputs::kF32;
};

// Rows [first, first + count) of the gathered rows: one closed unit's rows that the loss counts.
struct HeadUnit {
  int64_t first = 0;
  int64_t count = 0;
};

// hidden[rows][H] (stride ldh), panels of head[vocab][H], targets[rows] in [0, vocab) ->
// log_prob[rows], max[rows] (m) and log_sum[rows] (dlog(S)), both kept by the caller for the
// backward, and entropy[rows] unless null. Outputs do not overlap inputs.
void HeadLogProb(Pool& pool, const HeadShape& shape, const float* hidden, int64_t ldh, int64_t rows,
                 ConstPanels panels, const int32_t* targets, float* log_prob, float* max,
                 float* log_sum, float* entropy);

// The two halves of HeadLogProb, for a vocabulary whose chunks lie on several ranks.
//
// Columns [first, first + count) of the vocabulary, whole chunks (the last may be short) and those
// that `panels` holds -> statistics [chunks][rows][kHeadStatistics] of these chunks, and the scaled
// logit of each row's target where it is one of these columns (others are left alone).
inline constexpr int64_t kHeadStatistics = 3;
void HeadChunks(Pool& pool, const HeadShape& shape, const float* hidden, int64_t ldh, int64_t rows,
                ConstPanels panels, int64_t first, int64_t count, const int32_t* targets,
                bool want_entropy, float* statistics, float* target_logits);
// statistics of all chunks, ascending.
void HeadMerge(Pool& pool, const HeadShape& shape, int64_t rows, const float* statistics,
               const float* target_logits, float* log_prob, float* max, float* log_sum,
               float* entropy);

// What one of several ranks has of a head. It owns columns of the vocabulary, whose logits'
// gradients it computes and hands to the others, and adds their weight gradient; it computes
// columns of dhidden from all of them.
struct HeadPart {
  RowRange vocabulary;  // whole chunks; `panels` and the accumulator hold these
  RowRange hidden;      // begin a multiple of 32
  ConstPanels columns;  // of head[vocab][hidden]
  // dz of columns of the vocabulary, of their owner to everyone; for each chunk, ascending.
  FunctionRef<void(int64_t first_column, std::span<float> dz)> share;
};

// dlp[rows] = d loss / d log_prob -> dhidden[rows][H] (stride ldd, overwritten) and the head's
// gradient added to panels_accumulator (panels32; null: not wanted). `units` cover the
// rows in order, without gaps; units of no rows are skipped. With `part` only its columns of
// dhidden are written.
void HeadLogProbBackward(Pool& pool, const HeadShape& shape, const float* hidden, int64_t ldh,
                         int64_t rows, ConstPanels panels, const int32_t* targets, const float* dlp,
                         const float* max, const float* log_sum, std::span<const HeadUnit> units,
                         float* dhidden, int64_t ldd, float* panels_accumulator,
                         const HeadPart* part = nullptr);

// Floats that a calling thread keeps for HeadLogProb and HeadLogProbBackward of so many rows; the
// pool's threads keep a block's each.
int64_t HeadScratchFloats(const HeadShape& shape, int64_t rows);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_HEAD_H_
