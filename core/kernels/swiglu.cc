// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/swiglu.h"

#include "core/kernels/elements.h"
#include "core/kernels/isa.h"
#include "core/kernels/units.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/swiglu.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

void SwiGluRange(int64_t n, const float* gate, const float* up, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const FloatVec g = LoadPart(gate + i, n - i);
    const FloatVec silu = hn::Div(g, VSigmoidDenominator(g));
    StorePart(hn::Mul(silu, LoadPart(up + i, n - i)), out + i, n - i);
  }
}

void SwiGluBackwardRange(int64_t n, const float* gate, const float* up, const float* dout,
                         float* dgate, float* dup) {
  const FloatVec one = Broadcast(1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const FloatVec g = LoadPart(gate + i, n - i);
    const FloatVec u = LoadPart(up + i, n - i);
    const FloatVec d = LoadPart(dout + i, n - i);
    const FloatVec t = VSigmoidDenominator(g);
    const FloatVec s = hn::Div(one, t);
    const FloatVec slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
    StorePart(hn::Mul(d, hn::Div(g, t)), dup + i, n - i);
    StorePart(hn::Mul(hn::Mul(d, u), slope), dgate + i, n - i);
  }
}

void AddRange(int64_t n, const float* a, const float* b, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StorePart(hn::Add(LoadPart(a + i, n - i), LoadPart(b + i, n - i)), out + i, n - i);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {

using internal::OverElements;

void SwiGlu(Pool& pool, int64_t n, const float* gate, const float* up, float* out) {
  OverElements(pool, n, [&](int64_t at, int64_t count) {
    TITAN_DISPATCH(SwiGluRange)(count, gate + at, up + at, out + at);
  });
}

void SwiGluBackward(Pool& pool, int64_t n, const float* gate, const float* up, const float* dout,
                    float* dgate, float* dup) {
  OverElements(pool, n, [&](int64_t at, int64_t count) {
    TITAN_DISPATCH(SwiGluBackwardRange)(count, gate + at, up + at, dout + at, dgate + at, dup + at);
  });
}

void Add(Pool& pool, int64_t n, const float* a, const float* b, float* out) {
  OverElements(pool, n, [&](int64_t at, int64_t count) {
    TITAN_DISPATCH(AddRange)(count, a + at, b + at, out + at);
  });
}

void AddInto(Pool& pool, int64_t n, float* left, const float* right) {
  Add(pool, n, left, right, left);
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
