// SPDX-License-Identifier: Apache-2.0
//
// Multi-head latent attention in its absorbed form (numerics contract, section 5; DeepSeek V3 and
// Kimi): what is cached is one latent c [latent] and one rotated key part k_r [rope] a token,
// shared by all heads, and all heads attend over it. Expanding keys and values instead gives other
// bits; a recipe has one form.
//
// Around the attention, per head h with W_k [nope][latent] and W_v [value][latent], the two parts
// of the rows of kv_b that belong to it:
//   query of the latent  PerHeadLinear with the transposed W_k: chains over `nope` of
//                        fma(q_n[i], W_k[i][r], acc)
//   output               PerHeadLinear with W_v over the latent
// In mode BF16 (bfloat16 panels, Inputs::kBf16) these two round their rows, as Linear does; what
// attention reads and gives is not rounded, and gradients go straight through.
// Attention, for the query row at position t and head h, over w = latent + rope channels (latent
// first), qs_d = q_d * scale: the order of attention.h with one key head of w channels, whose value
// is the key's first `latent` channels: segments of 512 keys, blocks of 64, online softmax,
// segments merged ascending; decode = prefill = chunks. Result o_r * (1 / l), row_max, row_sum.
// Backward: D = RowSumProduct(dout, out) over the latent, p_j, dp_j, ds_j, dq as in attention.h. Of
// the cached row j, chains over queries ascending from +0 of fma(ds_ij, qs_id, acc) and, over the
// latent, of fma(p_ij, dout_ir, acc), each per head, heads added ascending; then
// dcache_jd = first + second on the latent, the first alone on the rope part.
//
// Segments have no parent here (checked). Pages as in attention.h: page p holds 16 positions at
// base + p * LatentPageFloats: the rows transposed [w][16], then the latents [16][latent].
//
// Shapes: q, dq [T][heads * w]; cache rows, dcache [T][w]; out, dout [T][heads * latent]; row_max,
// row_sum [T][heads]. Tasks are a row and head, and a segment and range of positions. Outputs do
// not overlap inputs.
#ifndef TITAN_CORE_KERNELS_LATENT_ATTENTION_H_
#define TITAN_CORE_KERNELS_LATENT_ATTENTION_H_

#include <cstdint>
#include <span>

#include "core/base/status.h"
#include "core/kernels/attention.h"
#include "core/kernels/panels.h"

namespace titan::kernels {

class Pool;

inline constexpr int64_t kMaxLatentWidth = 1024;

struct LatentShape {
  int64_t heads = 0;
  int64_t latent = 0;
  int64_t rope = 0;  // may be 0
  float scale = 0.0f;

  int64_t width() const { return latent + rope; }
};

// InvalidArgument, naming the field.
Status ValidateLatentShape(const LatentShape& shape);

int64_t LatentPageFloats(const LatentShape& shape);

// Stores the rows' latents (normed) and rotated key parts, rows [T][width].
void WriteLatent(Pool& pool, const LatentShape& shape, const float* rows,
                 std::span<const Segment> segments, float* base);

// row_max and row_sum may both be null (generation).
void LatentAttentionForward(Pool& pool, const LatentShape& shape, const float* q,
                            std::span<const Segment> segments, const float* base, float* out,
                            float* row_max, float* row_sum);

// REQUIRES: every segment has first_position 0 and its own pages. dq and dcache are written for the
// segments' rows.
void LatentAttentionBackward(Pool& pool, const LatentShape& shape, const float* q,
                             std::span<const Segment> segments, const float* base, const float* out,
                             const float* dout, const float* row_max, const float* row_sum,
                             float* dq, float* dcache);

// out [rows][heads * n] of x [rows][heads * k]: a Linear of each head with its own matrix. The
// input gradient is this with the transposed panels, without rounding.
void PerHeadLinear(Pool& pool, const float* x, int64_t rows, std::span<const ConstPanels> panels,
                   int64_t n, int64_t k, int leaves, float* out, Inputs inputs = Inputs::kF32);

// Of each head and unit (ranges of rows, ascending): LinearWeightGradient of x [rows][heads * k]
// and dy [rows][heads * n] into the head's accumulator, panels32 of [n][k].
void PerHeadWeightGradient(Pool& pool, std::span<const RowRange> units, const float* x,
                           const float* dy, int64_t n, int64_t k,
                           std::span<float* const> accumulators, Inputs inputs = Inputs::kF32);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_LATENT_ATTENTION_H_
