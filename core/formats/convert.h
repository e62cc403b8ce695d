// SPDX-License-Identifier: Apache-2.0
//
// Stored number formats to f32, exactly, and the cleaning that every weight gets on its way in
// (numerics.md section 1). Integer operations only where bits matter, so the result does not depend
// on the FTZ and DAZ bits of the calling thread. Pure functions, any thread.
#ifndef TITAN_CORE_FORMATS_CONVERT_H_
#define TITAN_CORE_FORMATS_CONVERT_H_

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/status.h"

namespace titan::formats {

// Element formats with a conversion. Blocks of 32: f16 d (and m where the name ends in 1), for Q5_*
// one u32 with bit 4 of each element, then the elements: int8 for Q8_0, else 16 bytes whose low
// halves are elements 0..15 and high halves 16..31.
//   Q8_0: d*q    Q4_0: d*(q - 8)    Q5_0: d*(q - 16)    Q4_1, Q5_1: d*q + m
// Blocks of 256 in groups g with scales of their own:
//   Q4_K: f16 d, f16 m, 12 bytes of 6-bit scales s and minima n of 8 groups, 128 bytes of halves:
//         (d*s)*q - m*n
//   Q6_K: 128 bytes of low halves, 64 bytes of upper 2 bits, 16 int8 scales s, f16 d:
//         (d*s)*(q - 32)
enum class StoredType { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ6_K };

// Elements and bytes of one block; plain types have blocks of 1 element.
struct BlockShape {
  int64_t elements;
  int64_t bytes;
};
BlockShape BlockShapeOf(StoredType type);

inline float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
float F16ToF32(uint16_t bits);

// Converts out.size() elements. REQUIRES: out.size() is a multiple of the block's elements and
// stored has exactly the bytes of that many; stored need not be aligned.
void ConvertToF32(StoredType type, std::span<const uint8_t> stored, std::span<float> out);

// Flushes denormals to a zero of the same sign. InvalidArgument "tensor <name>: element <i> is
// <value>": the first NaN or infinity.
Status CleanWeights(std::string_view name, std::span<float> values);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_CONVERT_H_
