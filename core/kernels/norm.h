// SPDX-License-Identifier: Apache-2.0
//
// RMS norms in F32, forward and backward, in the kinds that families use. x is
// [rows][heads][width], contiguous; each of its rows * heads vectors is normed by itself, the gain
// [width] is shared by all (heads = 1: a layer's norm; above: the norm of each query or key head).
// Parallel over rows and over columns of the gain. No allocation.
//
// Forward of one vector, `one` = 1 + gain rounded:
//   ss    = RowSumProduct(v, v), inv = 1 / sqrt(ss / f32(width) + eps), IEEE division and root
//   kGain         v = x; out_i = (x_i * inv) * gain_i
//                 Llama, Mistral, Qwen2, Qwen3, gpt-oss, DeepSeek V3, Kimi
//   kCentredGain  v = x; out_i = (x_i * inv) * one_i         Gemma 3, Qwen3-Next, Qwen3.5
//   kPlain        v = x; out_i = x_i * inv                   no weight
//   kGainFirst    v = x_i * one_i; out_i = v_i * inv         Muse Spark, after its experts
//
// Backward, g_i = gain_i, one_i, 1 or 1 as the kind says:
//   a_i   = dy_i * g_i (kPlain, kGainFirst: dy_i)
//   dot   = RowSumProduct(a, v)
//   c     = (dot / f32(width)) * (inv * inv)
//   dv_i  = inv * fma(-c, v_i, a_i)
//   dx_i  = dv_i (kGainFirst: dv_i * one_i)
//   gain: per unit and head one chain over the unit's rows ascending from +0 of
//   fma(dy_i, x_i * inv, acc) (kGainFirst: fma(dv_i, x_i, acc)); the heads' chains are added
//   ascending, ((h0 + h1) + h2) ...; dgain_i = dgain_i + that sum; units in the order given
#ifndef TITAN_CORE_KERNELS_NORM_H_
#define TITAN_CORE_KERNELS_NORM_H_

#include <cstdint>
#include <span>

#include "core/kernels/units.h"

namespace titan::kernels {

class Pool;

enum class NormKind : uint8_t { kGain, kCentredGain, kPlain, kGainFirst };

struct NormShape {
  NormKind kind = NormKind::kGain;
  int64_t heads = 1;
};

// out may be x. inv_rms [rows * heads] is written when not null (the backward needs it). gain is
// not read by kPlain.
void RmsNorm(Pool& pool, const float* x, int64_t rows, int64_t width, const float* gain, float eps,
             float* out, float* inv_rms, const NormShape& shape = {});

// dx is written (not added to) and may be dy. dgain [width] is accumulated; null skips it (kPlain
// has none: null). units: disjoint row ranges covering the rows that count, ascending.
void RmsNormBackward(Pool& pool, const float* x, int64_t rows, int64_t width, const float* gain,
                     const float* inv_rms, const float* dy, float* dx,
                     std::span<const RowRange> units, float* dgain, const NormShape& shape = {});

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_NORM_H_
