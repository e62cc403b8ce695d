// SPDX-License-Identifier: Apache-2.0
//
// RMS norm of kind N1 in F32 (weight after the scaling), forward and backward. Rows are contiguous,
// row stride = hidden. Parallel over rows and over columns of the gain. No allocation.
//
// Forward:
//   ss    = RowSumProduct(x, x)
//   inv   = 1 / sqrt(ss / f32(hidden) + eps), IEEE division and square root
//   out_i = (x_i * inv) * gain_i
// Backward:
//   a_i   = dy_i * gain_i
//   dot   = RowSumProduct(a, x)
//   c     = (dot / f32(hidden)) * (inv * inv)
//   dx_i  = inv * fma(-c, x_i, a_i)
//   gain: per unit one chain over its rows ascending from +0 of fma(dy_i, x_i * inv, acc), then
//   dgain_i = dgain_i + chain; units in the order given
#ifndef TITAN_CORE_KERNELS_NORM_H_
#define TITAN_CORE_KERNELS_NORM_H_

#include <cstdint>
#include <span>

#include "core/kernels/units.h"

namespace titan::kernels {

class Pool;

// out may be x. inv_rms [rows] is written when not null (the backward needs it).
void RmsNorm(Pool& pool, const float* x, int64_t rows, int64_t hidden, const float* gain, float eps,
             float* out, float* inv_rms);

// dx is written (not added to) and may be dy. dgain [hidden] is accumulated; null skips it.
// units: disjoint row ranges covering the rows that count, ascending.
void RmsNormBackward(Pool& pool, const float* x, int64_t rows, int64_t hidden, const float* gain,
                     const float* inv_rms, const float* dy, float* dx,
                     std::span<const RowRange> units, float* dgain);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_NORM_H_
