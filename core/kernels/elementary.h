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
//     adding n to the exponent field. Never denormal. Error below 1.2 ulp.
//   DLog(x): NaN or x <= -(least normal) -> NaN, then x < least normal (zeros and denormals of either
//     sign) -> -inf, +inf -> +inf. Else x = 2^e m with m in [sqrt(1/2), sqrt 2), f = m - 1,
//     log x = (f - f^2/2 + f^3 P(f)) + e ln2, ln2 in two parts.
//   DSigmoid(x) = 1 / (1 + DExp(-x)), DSilu(x) = x / (1 + DExp(-x)), IEEE addition and division.
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

inline float DSigmoid(float x) { return 1.0f / (1.0f + DExp(-x)); }
inline float DSilu(float x) { return x / (1.0f + DExp(-x)); }

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_ELEMENTARY_H_
