// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/row_sum.h"

#include "core/base/check.h"
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

template <typename Function>
HWY_INLINE void Apply(const Function& function, const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StorePart(function(LoadPart(x + i, n - i)), out + i, n - i);
  }
}

void ExpOf(const float* x, int64_t n, float* out) {
  Apply([](FloatVec v) { return VExp(v); }, x, n, out);
}
void LogOf(const float* x, int64_t n, float* out) {
  Apply([](FloatVec v) { return VLog(v); }, x, n, out);
}
void Expm1Of(const float* x, int64_t n, float* out) {
  Apply([](FloatVec v) { return VExpm1(v); }, x, n, out);
}
void Log1pOf(const float* x, int64_t n, float* out) {
  Apply([](FloatVec v) { return VLog1p(v); }, x, n, out);
}
void TanhOf(const float* x, int64_t n, float* out) {
  Apply([](FloatVec v) { return VTanh(v); }, x, n, out);
}
void ErfOf(const float* x, int64_t n, float* out) {
  Apply([](FloatVec v) { return VErf(v); }, x, n, out);
}
void SoftplusOf(const float* x, int64_t n, float* out) {
  Apply([](FloatVec v) { return VSoftplus(v); }, x, n, out);
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {

float RowSum(const float* x, int64_t n) {
  TITAN_DCHECK(NumericEnvironmentIsSet());
  return TITAN_DISPATCH(RowSum)(x, n);
}
float RowSumProduct(const float* a, const float* b, int64_t n) {
  TITAN_DCHECK(NumericEnvironmentIsSet());
  return TITAN_DISPATCH(RowSumProduct)(a, b, n);
}
void ExpOf(const float* x, int64_t n, float* out) { TITAN_DISPATCH(ExpOf)(x, n, out); }
void LogOf(const float* x, int64_t n, float* out) { TITAN_DISPATCH(LogOf)(x, n, out); }
void Expm1Of(const float* x, int64_t n, float* out) { TITAN_DISPATCH(Expm1Of)(x, n, out); }
void Log1pOf(const float* x, int64_t n, float* out) { TITAN_DISPATCH(Log1pOf)(x, n, out); }
void TanhOf(const float* x, int64_t n, float* out) { TITAN_DISPATCH(TanhOf)(x, n, out); }
void ErfOf(const float* x, int64_t n, float* out) { TITAN_DISPATCH(ErfOf)(x, n, out); }
void SoftplusOf(const float* x, int64_t n, float* out) { TITAN_DISPATCH(SoftplusOf)(x, n, out); }

}  // namespace titan::kernels
#endif  // HWY_ONCE
