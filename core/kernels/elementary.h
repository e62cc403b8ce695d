// SPDX-License-Identifier: Apache-2.0
//
// Scalar elementary functions of the defined order (numerics.md section 4). The vector forms in
// elementary-inl.h perform the same operations in the same sequence, so both give the same bits; a
// test sweeps them against each other. Polynomials are minimax fits of our own; every multiply-add
// is written. Pure functions, any thread, round to nearest even; results do not depend on FTZ or
// DAZ.
//
//   DExp(x): x >= 88.72 -> +inf, x <= -87.33 -> +0, NaN -> NaN. Else n = round(x * log2 e) by the
//     1.5 * 2^23 shift, r = x - n ln2 in two FMAs, p = 1 + r + r^2 q(r) by Horner, p * 2^n by
//     adding n to the exponent field. Never denormal.
//   DLog(x): NaN or x <= -(least normal) -> NaN, then x < least normal (zeros and denormals of
//   either
//     sign) -> -inf, +inf -> +inf. Else x = 2^e m with m in [sqrt(1/2), sqrt 2), f = m - 1,
//     log x = (f - f^2/2 + f^3 P(f)) + e ln2, ln2 in two parts.
//   DExpm1(x): |x| < 2^-25 -> x, x >= 60 -> DExp(x), x <= -20 -> -1. Else with DExp's n, r and what
//     rounding took from r: e = r + r^2 q(r) and 2^n e + (2^n - 1), both with what their additions
//     lose; high + low.
//   DLog1p(x): u = 1 + x; u = 1 -> x, +inf -> +inf, u <= 0 -> DLog(u); else DLog of u with
//     (1 + x - u) / u added to its lower part.
//   DTanh(x): |x| < 2^-12 -> x, |x| >= 10 -> +-1; else with DExpm1(2 |x|) = high + low:
//     high / (high + 2), corrected by its remainder once; sign of x.
//   DErf(x): |x| < least normal -> x, |x| < 0.925 -> fma(x, P(x^2), x), |x| >= 3.93 -> +-1; else
//     1 - DExp(L(|x|)) with the sign of x, L a fit of log erfc whose last step is kept in two
//     parts.
//   DSoftplus(x), log(1 + e^x): x >= 20 -> x, x <= -20 -> DExp(x). Else v = e^-|x| in two parts by
//     DExpm1's e; v < sqrt 2 - 1: f = v, no ln2; above: f = (v - 1) / 2 and one ln2. max(x, 0),
//     ln2's high part and f are added exactly (sum + what it lost); to what was lost come, as in
//     DLog1p, f^3 P(f), ln2's low part, -f^2/2 and v's lower part / (1 + v).
//   All are within 1 ulp of the exact value.
#ifndef TITAN_CORE_KERNELS_ELEMENTARY_H_
#define TITAN_CORE_KERNELS_ELEMENTARY_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace titan::kernels {

namespace elementary {

inline constexpr float kExpOverflow = 88.72f;
inline constexpr float kExpUnderflow = -87.33f;
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2Hi = 0x1.62e4p-1f;  // 15 significant bits: n * kLn2Hi is exact
inline constexpr float kLn2Lo = 0x1.7f7d1cp-20f;
inline constexpr float kRoundShift = 0x1.8p+23f;
inline constexpr float kExpPoly[5] = {0x1.fffffcp-2f, 0x1.55549p-3f, 0x1.5558f4p-5f, 0x1.123a6cp-7f,
                                      0x1.6a2352p-10f};
inline constexpr float kLogPoly[9] = {0x1.555548p-2f,  -0x1.000006p-2f, 0x1.99a4b6p-3f,
                                      -0x1.555c4ep-3f, 0x1.233768p-3f,  -0x1.fc2206p-4f,
                                      0x1.e6f062p-4f,  -0x1.de3c1cp-4f, 0x1.1457c4p-4f};
inline constexpr float kErfPoly[7] = {0x1.06eba8p-3f,  -0x1.812744p-2f, 0x1.ce2e54p-4f,
                                      -0x1.b81524p-6f, 0x1.550a44p-8f,  -0x1.aca392p-11f,
                                      0x1.6510c2p-14f};
inline constexpr float kLogErfcPoly[8] = {0x1.657b22p-13f, -0x1.212694p+0f, -0x1.444b48p-1f,
                                          -0x1.bb564ap-4f, 0x1.9b1964p-6f,  -0x1.10aa0ap-8f,
                                          0x1.c54d6ep-12f, -0x1.5ecdd4p-16f};
inline constexpr float kErfSplit = 0.925f;
inline constexpr float kErfOne = 3.93f;
inline constexpr float kExpm1Tiny = 0x1p-25f;
inline constexpr float kExpm1Large = 60.0f;
inline constexpr float kExpm1Low = -20.0f;
inline constexpr float kTanhTiny = 0x1p-12f;
inline constexpr float kTanhOne = 10.0f;
inline constexpr float kSoftplusSplit = 0x1.a8279ap-2f;  // sqrt 2 - 1
inline constexpr float kSoftplusLarge = 20.0f;
inline constexpr int32_t kSqrtHalfBits = 0x3f3504f3;
inline constexpr float kLeastNormal = 0x1p-126f;
inline constexpr uint32_t kNanBits = 0x7fc00000u;  // the one NaN that these functions return

}  // namespace elementary

inline float DExp(float x) {
  using namespace elementary;
  if (!(x == x)) return std::bit_cast<float>(kNanBits);
  if (x >= kExpOverflow) return std::numeric_limits<float>::infinity();
  if (x <= kExpUnderflow) return 0.0f;
  const float t = std::fma(x, kLog2E, kRoundShift);
  const float n = t - kRoundShift;
  float r = std::fma(n, -kLn2Hi, x);
  r = std::fma(n, -kLn2Lo, r);
  float p = kExpPoly[4];
  for (int i = 3; i >= 0; --i) p = std::fma(p, r, kExpPoly[i]);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const uint32_t shift = (std::bit_cast<uint32_t>(t) - std::bit_cast<uint32_t>(kRoundShift)) << 23;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + shift);
}

inline float DLog(float x) {
  using namespace elementary;
  if (!(x > -kLeastNormal)) return std::bit_cast<float>(kNanBits);
  if (x < kLeastNormal) return -std::numeric_limits<float>::infinity();
  if (x == std::numeric_limits<float>::infinity()) return x;
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t e = (bits - kSqrtHalfBits) >> 23;
  const float m = std::bit_cast<float>(bits - static_cast<int32_t>(static_cast<uint32_t>(e) << 23));
  const float f = m - 1.0f;
  const float ef = static_cast<float>(e);
  float p = kLogPoly[8];
  for (int i = 7; i >= 0; --i) p = std::fma(p, f, kLogPoly[i]);
  const float f2 = f * f;
  const float cubic = f2 * f;
  float low = cubic * p;
  low = std::fma(ef, kLn2Lo, low);
  low = std::fma(f2, -0.5f, low);
  const float high = f + low;
  return std::fma(ef, kLn2Hi, high);
}

// e^x as scale * (1 + (e + e_low)), scale a power of two.
struct ExpParts {
  float scale, e, e_low;
};

inline ExpParts DExpParts(float x) {
  using namespace elementary;
  const float t = std::fma(x, kLog2E, kRoundShift);
  const float n = t - kRoundShift;
  const float exact = std::fma(n, -kLn2Hi, x);
  const float r = std::fma(n, -kLn2Lo, exact);
  const float r_low = std::fma(n, -kLn2Lo, exact - r);
  float q = kExpPoly[4];
  for (int i = 3; i >= 0; --i) q = std::fma(q, r, kExpPoly[i]);
  const float square = (r * r) * q;
  const float e = r + square;
  const float e_low = (r - e) + square;
  const uint32_t shift = (std::bit_cast<uint32_t>(t) - std::bit_cast<uint32_t>(kRoundShift)) << 23;
  const float scale = std::bit_cast<float>(std::bit_cast<uint32_t>(1.0f) + shift);
  return {scale, e, e_low + r_low};
}

// expm1 as an unevaluated sum.
struct Expm1Parts {
  float high, low;
};

inline Expm1Parts DExpm1Parts(float x) {
  const auto [scale, e, e_low] = DExpParts(x);
  const float rest = scale - 1.0f;
  const float high = std::fma(scale, e, rest);
  const float low = std::fma(scale, e, rest - high) + ((scale - rest) - 1.0f);
  return {high, std::fma(scale, e_low, low)};
}

inline float DExpm1(float x) {
  using namespace elementary;
  if (!(x == x)) return std::bit_cast<float>(kNanBits);
  if (x >= kExpm1Large) return DExp(x);
  if (x <= kExpm1Low) return -1.0f;
  if (std::abs(x) < kExpm1Tiny) return x;
  const Expm1Parts parts = DExpm1Parts(x);
  return parts.high + parts.low;
}

inline float DLog1p(float x) {
  using namespace elementary;
  const float u = 1.0f + x;
  if (u == 1.0f || x == std::numeric_limits<float>::infinity()) return x;
  if (!(u > 0.0f)) return DLog(u);
  const float back = u - 1.0f;
  const float lost = (1.0f - (u - back)) + (x - back);
  const int32_t bits = std::bit_cast<int32_t>(u);
  const int32_t e = (bits - kSqrtHalfBits) >> 23;
  const float m = std::bit_cast<float>(bits - static_cast<int32_t>(static_cast<uint32_t>(e) << 23));
  const float f = m - 1.0f;
  const float ef = static_cast<float>(e);
  float p = kLogPoly[8];
  for (int i = 7; i >= 0; --i) p = std::fma(p, f, kLogPoly[i]);
  const float f2 = f * f;
  float low = f2 * f * p;
  low = std::fma(ef, kLn2Lo, low);
  low = std::fma(f2, -0.5f, low) + lost / u;
  const float high = f + low;
  return std::fma(ef, kLn2Hi, high);
}

inline float DTanh(float x) {
  using namespace elementary;
  if (!(x == x)) return std::bit_cast<float>(kNanBits);
  const float a = std::abs(x);
  if (a < kTanhTiny) return x;
  if (a >= kTanhOne) return std::copysign(1.0f, x);
  const Expm1Parts e = DExpm1Parts(a + a);
  const float d = e.high + 2.0f;
  const float back = d - e.high;
  const float d_low = (e.high - (d - back)) + (2.0f - back) + e.low;
  const float inverse = 1.0f / d;
  const float y = e.high * inverse;
  const float rest = std::fma(-y, d, e.high) + std::fma(-y, d_low, e.low);
  return std::copysign(std::fma(rest, inverse, y), x);
}

inline float DErf(float x) {
  using namespace elementary;
  if (!(x == x)) return std::bit_cast<float>(kNanBits);
  const float a = std::abs(x);
  if (a < kLeastNormal) return x;
  if (a >= kErfOne) return std::copysign(1.0f, x);
  if (a < kErfSplit) {
    const float u = a * a;
    float p = kErfPoly[6];
    for (int i = 5; i >= 0; --i) p = std::fma(p, u, kErfPoly[i]);
    return std::fma(x, p, x);
  }
  float l = kLogErfcPoly[7];
  for (int i = 6; i >= 1; --i) l = std::fma(l, a, kLogErfcPoly[i]);
  const float high = std::fma(l, a, kLogErfcPoly[0]);
  const float product = l * a;
  const float low = std::fma(l, a, -product) + ((product - high) + kLogErfcPoly[0]);
  const float erfc = DExp(high);
  return std::copysign(1.0f - std::fma(erfc, low, erfc), x);
}

inline float DSoftplus(float x) {
  using namespace elementary;
  if (!(x == x)) return std::bit_cast<float>(kNanBits);
  if (x >= kSoftplusLarge) return x;
  if (x <= -kSoftplusLarge) return DExp(x);
  const ExpParts parts = DExpParts(-std::abs(x));
  const float p = 1.0f + parts.e;
  const float v = p * parts.scale;
  const float v_low = ((parts.e - (p - 1.0f)) + parts.e_low) * parts.scale;
  const bool small = v < kSoftplusSplit;
  const float d = v - 1.0f;
  const float f = small ? v : 0.5f * d;
  const float rest = small ? v_low : (v - (d + 1.0f)) + v_low;
  const float positive = x > 0.0f ? x : 0.0f;
  const float ln2 = small ? 0.0f : kLn2Hi;
  const float base = positive + ln2;
  const float back = base - positive;
  const float base_low = (positive - (base - back)) + (ln2 - back);
  const float sum = base + f;
  const float sum_low = f - (sum - base);
  float q = kLogPoly[8];
  for (int i = 7; i >= 0; --i) q = std::fma(q, f, kLogPoly[i]);
  const float f2 = f * f;
  float low = f2 * f * q;
  low = low + (small ? 0.0f : kLn2Lo);
  low = std::fma(f2, -0.5f, low) + rest / (1.0f + v);
  return sum + (low + (base_low + sum_low));
}

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_ELEMENTARY_H_
