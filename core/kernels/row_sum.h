// SPDX-License-Identifier: Apache-2.0
//
// The row sum of numerics.md section 3, vectorised. The row is padded with +0 to a multiple of
// 1024; inside a chunk of 1024, lane j of 64 sums elements j, j+64, ... ascending from +0; lanes
// are added by the tree 32, 16, ..., 1 (lane j += lane j + h); chunks are added ascending to a
// total that starts at +0. Pure functions of the row, any thread inside a NumericThread (checked in
// debug builds); nothing is allocated.
#ifndef TITAN_CORE_KERNELS_ROW_SUM_H_
#define TITAN_CORE_KERNELS_ROW_SUM_H_

#include <cstdint>

namespace titan::kernels {

// Sum of x[0..n). A lane adds with one rounding per element.
float RowSum(const float* x, int64_t n);
// Sum of a[i] * b[i]: a lane does acc = fma(a, b, acc).
float RowSumProduct(const float* a, const float* b, int64_t n);

// out[i] = the function of elementary.h of x[i], by the vector forms; out may be x.
void ExpOf(const float* x, int64_t n, float* out);
void LogOf(const float* x, int64_t n, float* out);
void Expm1Of(const float* x, int64_t n, float* out);
void Log1pOf(const float* x, int64_t n, float* out);
void TanhOf(const float* x, int64_t n, float* out);
void ErfOf(const float* x, int64_t n, float* out);
void SoftplusOf(const float* x, int64_t n, float* out);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_ROW_SUM_H_
