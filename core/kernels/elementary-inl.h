// SPDX-License-Identifier: Apache-2.0
//
// Vector forms of elementary.h and of the row sum, for one Highway target: included between the
// target guards of a kernel source (isa.h shows the recipe), once per target. A vector holds
// HWY_LANES(float) independent outputs; nothing here depends on that number, so AVX2 and AVX-512
// give the same bits. The operations and their sequence are those of the scalar functions.
#if defined(TITAN_CORE_KERNELS_ELEMENTARY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TITAN_CORE_KERNELS_ELEMENTARY_INL_H_
#undef TITAN_CORE_KERNELS_ELEMENTARY_INL_H_
#else
#define TITAN_CORE_KERNELS_ELEMENTARY_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "core/kernels/elementary.h"
#include "core/kernels/order.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr int64_t kLanes = HWY_LANES(float);

HWY_INLINE FloatVec Load(const float* p) { return hn::LoadU(FloatTag(), p); }
HWY_INLINE FloatVec Broadcast(float value) { return hn::Set(FloatTag(), value); }
HWY_INLINE void Store(FloatVec v, float* p) { hn::StoreU(v, FloatTag(), p); }

// The first `count` elements and +0 beyond; nothing beyond is read.
HWY_INLINE FloatVec LoadPart(const float* p, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return Load(p);
  return hn::MaskedLoad(hn::FirstN(FloatTag(), static_cast<size_t>(count)), FloatTag(), p);
}
// Writes the first `count` elements only.
HWY_INLINE void StorePart(FloatVec v, float* p, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return Store(v, p);
  hn::BlendedStore(v, hn::FirstN(FloatTag(), static_cast<size_t>(count)), FloatTag(), p);
}

// DExp of elementary.h.
HWY_INLINE FloatVec VExp(FloatVec x) {
  namespace el = elementary;
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const FloatVec shift = Broadcast(el::kRoundShift);
  const FloatVec t = hn::MulAdd(x, Broadcast(el::kLog2E), shift);
  const FloatVec n = hn::Sub(t, shift);
  FloatVec r = hn::MulAdd(n, Broadcast(-el::kLn2Hi), x);
  r = hn::MulAdd(n, Broadcast(-el::kLn2Lo), r);
  FloatVec p = Broadcast(el::kExpPoly[4]);
  for (int i = 3; i >= 0; --i) p = hn::MulAdd(p, r, Broadcast(el::kExpPoly[i]));
  p = hn::MulAdd(p, r, Broadcast(1.0f));
  p = hn::MulAdd(p, r, Broadcast(1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Sub(hn::BitCast(di, t), hn::BitCast(di, shift)));
  FloatVec y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  y = hn::IfThenElse(hn::Ge(x, Broadcast(el::kExpOverflow)),
                     Broadcast(std::numeric_limits<float>::infinity()), y);
  y = hn::IfThenElse(hn::Le(x, Broadcast(el::kExpUnderflow)), hn::Zero(d), y);
  return hn::IfThenElse(hn::Eq(x, x), y, Broadcast(std::bit_cast<float>(el::kNanBits)));
}

// DLog of a positive normal number, with `added` in its lower part.
HWY_INLINE FloatVec VLogBody(FloatVec x, const FloatVec* added) {
  namespace el = elementary;
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto bits = hn::BitCast(di, x);
  const auto e = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, el::kSqrtHalfBits)));
  const FloatVec m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(e)));
  const FloatVec f = hn::Sub(m, Broadcast(1.0f));
  const FloatVec ef = hn::ConvertTo(d, e);
  FloatVec p = Broadcast(el::kLogPoly[8]);
  for (int i = 7; i >= 0; --i) p = hn::MulAdd(p, f, Broadcast(el::kLogPoly[i]));
  const FloatVec f2 = hn::Mul(f, f);
  FloatVec low = hn::Mul(hn::Mul(f2, f), p);
  low = hn::MulAdd(ef, Broadcast(el::kLn2Lo), low);
  low = hn::MulAdd(f2, Broadcast(-0.5f), low);
  if (added != nullptr) low = hn::Add(low, *added);
  return hn::MulAdd(ef, Broadcast(el::kLn2Hi), hn::Add(f, low));
}
HWY_INLINE FloatVec VLogWith(FloatVec x, FloatVec added) { return VLogBody(x, &added); }

// DLog of elementary.h.
HWY_INLINE FloatVec VLog(FloatVec x) {
  namespace el = elementary;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  FloatVec y = VLogBody(x, nullptr);
  y = hn::IfThenElse(hn::Eq(x, Broadcast(kInfinity)), x, y);
  y = hn::IfThenElse(hn::Lt(x, Broadcast(el::kLeastNormal)), Broadcast(-kInfinity), y);
  return hn::IfThenElse(hn::Gt(x, Broadcast(-el::kLeastNormal)), y,
                        Broadcast(std::bit_cast<float>(el::kNanBits)));
}

HWY_INLINE FloatVec VNanOr(FloatVec x, FloatVec y) {
  return hn::IfThenElse(hn::Eq(x, x), y, Broadcast(std::bit_cast<float>(elementary::kNanBits)));
}

// DExpParts of elementary.h.
HWY_INLINE void VExpParts(FloatVec x, FloatVec* scale, FloatVec* e, FloatVec* e_low) {
  namespace el = elementary;
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const FloatVec shift = Broadcast(el::kRoundShift);
  const FloatVec t = hn::MulAdd(x, Broadcast(el::kLog2E), shift);
  const FloatVec n = hn::Sub(t, shift);
  const FloatVec exact = hn::MulAdd(n, Broadcast(-el::kLn2Hi), x);
  const FloatVec r = hn::MulAdd(n, Broadcast(-el::kLn2Lo), exact);
  const FloatVec r_low = hn::MulAdd(n, Broadcast(-el::kLn2Lo), hn::Sub(exact, r));
  FloatVec q = Broadcast(el::kExpPoly[4]);
  for (int i = 3; i >= 0; --i) q = hn::MulAdd(q, r, Broadcast(el::kExpPoly[i]));
  const FloatVec square = hn::Mul(hn::Mul(r, r), q);
  *e = hn::Add(r, square);
  *e_low = hn::Add(hn::Add(hn::Sub(r, *e), square), r_low);
  const auto exponent = hn::ShiftLeft<23>(hn::Sub(hn::BitCast(di, t), hn::BitCast(di, shift)));
  *scale = hn::BitCast(d, hn::Add(hn::BitCast(di, Broadcast(1.0f)), exponent));
}

// DExpm1Parts of elementary.h.
HWY_INLINE void VExpm1Parts(FloatVec x, FloatVec* high, FloatVec* low) {
  const FloatVec one = Broadcast(1.0f);
  FloatVec scale, e, e_low;
  VExpParts(x, &scale, &e, &e_low);
  const FloatVec rest = hn::Sub(scale, one);
  *high = hn::MulAdd(scale, e, rest);
  const FloatVec lost =
      hn::Add(hn::MulAdd(scale, e, hn::Sub(rest, *high)), hn::Sub(hn::Sub(scale, rest), one));
  *low = hn::MulAdd(scale, e_low, lost);
}

// DExpm1 of elementary.h.
HWY_INLINE FloatVec VExpm1(FloatVec x) {
  namespace el = elementary;
  FloatVec high, low;
  VExpm1Parts(x, &high, &low);
  FloatVec y = hn::Add(high, low);
  y = hn::IfThenElse(hn::Lt(hn::Abs(x), Broadcast(el::kExpm1Tiny)), x, y);
  y = hn::IfThenElse(hn::Le(x, Broadcast(el::kExpm1Low)), Broadcast(-1.0f), y);
  y = hn::IfThenElse(hn::Ge(x, Broadcast(el::kExpm1Large)), VExp(x), y);
  return VNanOr(x, y);
}

// DLog1p of elementary.h.
HWY_INLINE FloatVec VLog1p(FloatVec x) {
  const FloatTag d;
  const FloatVec one = Broadcast(1.0f);
  const FloatVec u = hn::Add(one, x);
  const FloatVec back = hn::Sub(u, one);
  const FloatVec lost = hn::Add(hn::Sub(one, hn::Sub(u, back)), hn::Sub(x, back));
  const FloatVec value = VLogWith(u, hn::Div(lost, u));
  const FloatVec y = hn::IfThenElse(hn::Gt(u, hn::Zero(d)), value, VLog(u));
  const auto itself =
      hn::Or(hn::Eq(u, one), hn::Eq(x, Broadcast(std::numeric_limits<float>::infinity())));
  return hn::IfThenElse(itself, x, y);
}

// DTanh of elementary.h.
HWY_INLINE FloatVec VTanh(FloatVec x) {
  namespace el = elementary;
  const FloatVec a = hn::Abs(x), two = Broadcast(2.0f);
  FloatVec high, low;
  VExpm1Parts(hn::Add(a, a), &high, &low);
  const FloatVec d = hn::Add(high, two);
  const FloatVec back = hn::Sub(d, high);
  const FloatVec d_low = hn::Add(hn::Add(hn::Sub(high, hn::Sub(d, back)), hn::Sub(two, back)), low);
  const FloatVec inverse = hn::Div(Broadcast(1.0f), d);
  FloatVec y = hn::Mul(high, inverse);
  const FloatVec rest = hn::Add(hn::NegMulAdd(y, d, high), hn::NegMulAdd(y, d_low, low));
  y = hn::MulAdd(rest, inverse, y);
  y = hn::IfThenElse(hn::Ge(a, Broadcast(el::kTanhOne)), Broadcast(1.0f), y);
  y = hn::CopySign(y, x);
  return VNanOr(x, hn::IfThenElse(hn::Lt(a, Broadcast(el::kTanhTiny)), x, y));
}

// DErf of elementary.h.
HWY_INLINE FloatVec VErf(FloatVec x) {
  namespace el = elementary;
  const FloatVec a = hn::Abs(x), one = Broadcast(1.0f), last = Broadcast(el::kLogErfcPoly[0]);
  const FloatVec u = hn::Mul(a, a);
  FloatVec p = Broadcast(el::kErfPoly[6]);
  for (int i = 5; i >= 0; --i) p = hn::MulAdd(p, u, Broadcast(el::kErfPoly[i]));
  FloatVec l = Broadcast(el::kLogErfcPoly[7]);
  for (int i = 6; i >= 1; --i) l = hn::MulAdd(l, a, Broadcast(el::kLogErfcPoly[i]));
  const FloatVec high = hn::MulAdd(l, a, last);
  const FloatVec product = hn::Mul(l, a);
  const FloatVec low = hn::Add(hn::MulSub(l, a, product), hn::Add(hn::Sub(product, high), last));
  const FloatVec erfc = VExp(high);
  FloatVec y = hn::CopySign(hn::Sub(one, hn::MulAdd(erfc, low, erfc)), x);
  y = hn::IfThenElse(hn::Lt(a, Broadcast(el::kErfSplit)), hn::MulAdd(x, p, x), y);
  y = hn::IfThenElse(hn::Ge(a, Broadcast(el::kErfOne)), hn::CopySign(one, x), y);
  return VNanOr(x, hn::IfThenElse(hn::Lt(a, Broadcast(el::kLeastNormal)), x, y));
}

// DSoftplus of elementary.h.
HWY_INLINE FloatVec VSoftplus(FloatVec x) {
  namespace el = elementary;
  const FloatTag tag;
  const FloatVec one = Broadcast(1.0f);
  FloatVec scale, e, e_low;
  VExpParts(hn::Neg(hn::Abs(x)), &scale, &e, &e_low);
  const FloatVec p = hn::Add(one, e);
  const FloatVec v = hn::Mul(p, scale);
  const FloatVec v_low = hn::Mul(hn::Add(hn::Sub(e, hn::Sub(p, one)), e_low), scale);
  const auto small = hn::Lt(v, Broadcast(el::kSoftplusSplit));
  const FloatVec d = hn::Sub(v, one);
  const FloatVec f = hn::IfThenElse(small, v, hn::Mul(Broadcast(0.5f), d));
  const FloatVec rest = hn::IfThenElse(small, v_low, hn::Add(hn::Sub(v, hn::Add(d, one)), v_low));
  const FloatVec positive = hn::IfThenElseZero(hn::Gt(x, hn::Zero(tag)), x);
  const FloatVec ln2 = hn::IfThenZeroElse(small, Broadcast(el::kLn2Hi));
  const FloatVec base = hn::Add(positive, ln2);
  const FloatVec back = hn::Sub(base, positive);
  const FloatVec base_low = hn::Add(hn::Sub(positive, hn::Sub(base, back)), hn::Sub(ln2, back));
  const FloatVec sum = hn::Add(base, f);
  const FloatVec sum_low = hn::Sub(f, hn::Sub(sum, base));
  FloatVec q = Broadcast(el::kLogPoly[8]);
  for (int i = 7; i >= 0; --i) q = hn::MulAdd(q, f, Broadcast(el::kLogPoly[i]));
  const FloatVec f2 = hn::Mul(f, f);
  FloatVec low = hn::Mul(hn::Mul(f2, f), q);
  low = hn::Add(low, hn::IfThenZeroElse(small, Broadcast(el::kLn2Lo)));
  low = hn::Add(hn::MulAdd(f2, Broadcast(-0.5f), low), hn::Div(rest, hn::Add(one, v)));
  FloatVec y = hn::Add(sum, hn::Add(low, hn::Add(base_low, sum_low)));
  y = hn::IfThenElse(hn::Le(x, Broadcast(-el::kSoftplusLarge)), VExp(x), y);
  y = hn::IfThenElse(hn::Ge(x, Broadcast(el::kSoftplusLarge)), x, y);
  return VNanOr(x, y);
}

// 1 + DExp(-x), the denominator of sigmoid and silu.
HWY_INLINE FloatVec VSigmoidDenominator(FloatVec x) {
  return hn::Add(Broadcast(1.0f), VExp(hn::Neg(x)));
}

// The tree 8, 4, 2, 1 over 16 values: lane j += lane j + h.
HWY_INLINE float Tree16(const FloatVec (&v)[16 / kLanes]) {
  const hn::CappedTag<float, 8> d8;
  const hn::CappedTag<float, 4> d4;
#if HWY_TARGET == HWY_AVX3
  const auto v8 = hn::Add(hn::LowerHalf(d8, v[0]), hn::UpperHalf(d8, v[0]));
#else
  const auto v8 = hn::Add(v[0], v[1]);
  (void)d8;
#endif
  const auto v4 = hn::Add(hn::LowerHalf(d4, v8), hn::UpperHalf(d4, v8));
  const auto v2 = hn::Add(v4, hn::Shuffle1032(v4));
  return hn::GetLane(hn::Add(v2, hn::Shuffle2301(v2)));
}

// The tree 32, 16, ..., 1 over the 64 lanes of a row sum or of a key block.
HWY_INLINE float Tree64(const FloatVec (&lane)[kRowSumLanes / kLanes]) {
  constexpr int64_t kQuarter = 16 / kLanes;
  FloatVec sums[kQuarter];
  for (int64_t i = 0; i < kQuarter; ++i) {
    sums[i] = hn::Add(hn::Add(lane[i], lane[i + 2 * kQuarter]),
                      hn::Add(lane[i + kQuarter], lane[i + 3 * kQuarter]));
  }
  return Tree16(sums);
}

// One chunk of at most 1024 elements: `add(acc, i, count)` gives acc plus the terms of elements
// i.., of which `count` (1..kLanes) exist; the terms beyond them must be +0.
template <typename AddTerms>
HWY_INLINE float ChunkSum(int64_t count, const AddTerms& add) {
  constexpr int64_t kVectors = kRowSumLanes / kLanes;
  FloatVec lane[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) lane[v] = hn::Zero(FloatTag());
  int64_t i = 0;
  for (; i + kRowSumLanes <= count; i += kRowSumLanes) {
    for (int64_t v = 0; v < kVectors; ++v) lane[v] = add(lane[v], i + v * kLanes, kLanes);
  }
  for (int64_t v = 0; v < kVectors; ++v) {
    const int64_t at = i + v * kLanes;
    if (at < count) lane[v] = add(lane[v], at, count - at < kLanes ? count - at : kLanes);
  }
  return Tree64(lane);
}

HWY_INLINE float RowSumVector(const float* x, int64_t n) {
  float total = 0.0f;
  for (int64_t c = 0; c < n; c += kRowSumChunk) {
    const int64_t count = n - c < kRowSumChunk ? n - c : kRowSumChunk;
    total = total + ChunkSum(count, [x, c](FloatVec acc, int64_t i, int64_t left) {
              return hn::Add(acc, LoadPart(x + c + i, left));
            });
  }
  return total;
}

HWY_INLINE float RowSumProductVector(const float* a, const float* b, int64_t n) {
  float total = 0.0f;
  for (int64_t c = 0; c < n; c += kRowSumChunk) {
    const int64_t count = n - c < kRowSumChunk ? n - c : kRowSumChunk;
    total = total + ChunkSum(count, [a, b, c](FloatVec acc, int64_t i, int64_t left) {
              return hn::MulAdd(LoadPart(a + c + i, left), LoadPart(b + c + i, left), acc);
            });
  }
  return total;
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#endif  // TITAN_CORE_KERNELS_ELEMENTARY_INL_H_
