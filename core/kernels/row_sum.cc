// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/row_sum.h"

#include "core/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/row_sum.cc"
#include "core/kernels/targets.h"
//
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

float RowSum(const float* x, int64_t n) { return RowSumVector(x, n); }
float RowSumProduct(const float* a, const float* b, int64_t n) {
  return RowSumProductVector(a, b, n);
}

void ExpOf(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) StorePart(VExp(LoadPart(x + i, n - i)), out + i, n - i);
}
void LogOf(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) StorePart(VLog(LoadPart(x + i, n - i)), out + i, n - i);
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {

float RowSum(const float* x, int64_t n) { return TITAN_DISPATCH(RowSum)(x, n); }
float RowSumProduct(const float* a, const float* b, int64_t n) {
  return TITAN_DISPATCH(RowSumProduct)(a, b, n);
}
void ExpOf(const float* x, int64_t n, float* out) { TITAN_DISPATCH(ExpOf)(x, n, out); }
void LogOf(const float* x, int64_t n, float* out) { TITAN_DISPATCH(LogOf)(x, n, out); }

}  // namespace titan::kernels
#endif  // HWY_ONCE
