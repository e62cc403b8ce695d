// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/gelu.h"

#include "core/kernels/elements.h"
#include "core/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gelu.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// t of the header; `square` is g * g.
HWY_INLINE FloatVec GeluTanh(FloatVec g, FloatVec square) {
  const FloatVec inner = hn::MulAdd(square, Broadcast(kGeluCubic), Broadcast(1.0f));
  return VTanh(hn::Mul(hn::Mul(g, Broadcast(kGeluRoot)), inner));
}

void GeluGluRange(int64_t n, const float* gate, const float* up, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const FloatVec g = LoadPart(gate + i, left);
    const FloatVec t = GeluTanh(g, hn::Mul(g, g));
    const FloatVec h = hn::Mul(Broadcast(0.5f), g);
    StorePart(hn::Mul(hn::MulAdd(h, t, h), LoadPart(up + i, left)), out + i, left);
  }
}

void GeluGluBackwardRange(int64_t n, const float* gate, const float* up, const float* dout,
                          float* dgate, float* dup) {
  const FloatVec one = Broadcast(1.0f), half = Broadcast(0.5f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const FloatVec g = LoadPart(gate + i, left), u = LoadPart(up + i, left);
    const FloatVec d = LoadPart(dout + i, left);
    const FloatVec square = hn::Mul(g, g);
    const FloatVec t = GeluTanh(g, square);
    const FloatVec h = hn::Mul(half, g);
    const FloatVec inner =
        hn::Mul(Broadcast(kGeluRoot), hn::MulAdd(square, Broadcast(kGeluCubic3), one));
    const FloatVec through = hn::Mul(hn::Mul(h, hn::NegMulAdd(t, t, one)), inner);
    const FloatVec slope = hn::Add(hn::MulAdd(half, t, half), through);
    StorePart(hn::Mul(d, hn::MulAdd(h, t, h)), dup + i, left);
    StorePart(hn::Mul(hn::Mul(d, u), slope), dgate + i, left);
  }
}

void ScaleRange(int64_t n, float factor, float* x) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StorePart(hn::Mul(LoadPart(x + i, n - i), Broadcast(factor)), x + i, n - i);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {

using internal::OverElements;

void GeluGlu(Pool& pool, int64_t n, const float* gate, const float* up, float* out) {
  OverElements(pool, n, [&](int64_t at, int64_t count) {
    TITAN_DISPATCH(GeluGluRange)(count, gate + at, up + at, out + at);
  });
}

void GeluGluBackward(Pool& pool, int64_t n, const float* gate, const float* up, const float* dout,
                     float* dgate, float* dup) {
  OverElements(pool, n, [&](int64_t at, int64_t count) {
    TITAN_DISPATCH(GeluGluBackwardRange)
    (count, gate + at, up + at, dout + at, dgate + at, dup + at);
  });
}

void ScaleBy(Pool& pool, int64_t n, float factor, float* x) {
  OverElements(pool, n, [&](int64_t at, int64_t count) {
    TITAN_DISPATCH(ScaleRange)(count, factor, x + at);
  });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
