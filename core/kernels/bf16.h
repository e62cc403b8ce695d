// SPDX-License-Identifier: Apache-2.0
//
// bfloat16 as the kernels store weights: the upper half of a binary32. Every bfloat16 is a binary32
// exactly, so reading one rounds nothing. Writing one rounds once:
//
//   a denormal becomes a zero of its sign (numerics contract, section 1), then round to nearest,
//   ties to the even bit pattern; what lies at or beyond the middle between the largest finite
//   bfloat16 and 2^128 becomes infinity; NaN becomes the canonical quiet NaN.
//
// So no bfloat16 that we write is denormal. Who writes weights refuses results that are not finite.
// Pure, any thread, any floating-point environment (integer operations only).
#ifndef TITAN_CORE_KERNELS_BF16_H_
#define TITAN_CORE_KERNELS_BF16_H_

#include <bit>
#include <cstdint>

namespace titan::kernels {

struct BFloat16 {
  uint16_t bits = 0;
  bool operator==(const BFloat16&) const = default;
};

// How the rows of x enter a product with the weights: as they are (modes F32 and W16), or each
// value rounded as above (mode BF16), to the bits of the product of the rounded rows.
enum class Inputs : uint8_t { kF32, kBf16 };

inline float ToFloat(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

inline BFloat16 RoundToBf16(float x) {  // without branches, so that loops over it vectorize
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t flushed = magnitude < 0x00800000u ? bits & 0x80000000u : bits;
  const uint32_t rounded = (flushed + 0x7fffu + ((flushed >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(magnitude > 0x7f800000u ? 0x7fc0u : rounded)};
}

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_BF16_H_
