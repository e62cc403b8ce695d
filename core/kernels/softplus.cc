// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/softplus.h"

#include "core/kernels/elements.h"
#include "core/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/softplus.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

void SoftplusRange(int64_t n, const float* x, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StorePart(VSoftplus(LoadPart(x + i, n - i)), out + i, n - i);
  }
}

void SoftplusBackwardRange(int64_t n, const float* x, const float* dout, float* dx) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const FloatVec t = VSigmoidDenominator(LoadPart(x + i, left));
    StorePart(hn::Div(LoadPart(dout + i, left), t), dx + i, left);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {

using internal::OverElements;

void Softplus(Pool& pool, int64_t n, const float* x, float* out) {
  OverElements(pool, n, [&](int64_t at, int64_t count) {
    TITAN_DISPATCH(SoftplusRange)(count, x + at, out + at);
  });
}

void SoftplusBackward(Pool& pool, int64_t n, const float* x, const float* dout, float* dx) {
  OverElements(pool, n, [&](int64_t at, int64_t count) {
    TITAN_DISPATCH(SoftplusBackwardRange)(count, x + at, dout + at, dx + at);
  });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
