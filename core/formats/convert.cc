// SPDX-License-Identifier: Apache-2.0
#include "core/formats/convert.h"

#include <fmt/format.h>

#include <cstring>

#include "core/base/check.h"

namespace titan::formats {
namespace {

constexpr int kBlock = 32;
constexpr int kSuperBlock = 256;

uint16_t Load16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

void ConvertQ8_0(const uint8_t* block, size_t num_blocks, float* out) {
  for (size_t b = 0; b < num_blocks; ++b, block += 2 + kBlock, out += kBlock) {
    const float scale = F16ToF32(Load16(block));
    for (int i = 0; i < kBlock; ++i) {
      out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    }
  }
}

void ConvertQ4_1(const uint8_t* block, size_t num_blocks, float* out) {
  for (size_t b = 0; b < num_blocks; ++b, block += 4 + kBlock / 2, out += kBlock) {
    const float scale = F16ToF32(Load16(block));
    const float minimum = F16ToF32(Load16(block + 2));
    for (int i = 0; i < kBlock / 2; ++i) {
      const uint8_t pair = block[4 + i];
      out[i] = scale * static_cast<float>(pair & 15) + minimum;
      out[i + kBlock / 2] = scale * static_cast<float>(pair >> 4) + minimum;
    }
  }
}

uint32_t Load32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

void ConvertQ4_0(const uint8_t* block, size_t num_blocks, float* out) {
  for (size_t b = 0; b < num_blocks; ++b, block += 2 + kBlock / 2, out += kBlock) {
    const float scale = F16ToF32(Load16(block));
    for (int i = 0; i < kBlock / 2; ++i) {
      const uint8_t pair = block[2 + i];
      out[i] = scale * static_cast<float>((pair & 15) - 8);
      out[i + kBlock / 2] = scale * static_cast<float>((pair >> 4) - 8);
    }
  }
}

// Element i of the 32 whose low four bits are `halves` and whose fifth bits are `fifth`.
int FiveBits(const uint8_t* halves, uint32_t fifth, int i) {
  const int low = i < kBlock / 2 ? halves[i] & 15 : halves[i - kBlock / 2] >> 4;
  return low | static_cast<int>(fifth >> i & 1) << 4;
}

void ConvertQ5_0(const uint8_t* block, size_t num_blocks, float* out) {
  for (size_t b = 0; b < num_blocks; ++b, block += 6 + kBlock / 2, out += kBlock) {
    const float scale = F16ToF32(Load16(block));
    const uint32_t fifth = Load32(block + 2);
    for (int i = 0; i < kBlock; ++i) {
      out[i] = scale * static_cast<float>(FiveBits(block + 6, fifth, i) - 16);
    }
  }
}

void ConvertQ5_1(const uint8_t* block, size_t num_blocks, float* out) {
  for (size_t b = 0; b < num_blocks; ++b, block += 8 + kBlock / 2, out += kBlock) {
    const float scale = F16ToF32(Load16(block));
    const float minimum = F16ToF32(Load16(block + 2));
    const uint32_t fifth = Load32(block + 4);
    for (int i = 0; i < kBlock; ++i) {
      out[i] = scale * static_cast<float>(FiveBits(block + 8, fifth, i)) + minimum;
    }
  }
}

// Scale and minimum, 6 bits each, of group g in [0, 8): groups 0..3 in the low bits of bytes g and
// g + 4; of groups 4..7 the low four bits in the two halves of byte g + 4, the upper two in the
// upper bits of bytes g - 4 and g.
void GroupOfQ4_K(const uint8_t* packed, int g, int* scale, int* minimum) {
  if (g < 4) {
    *scale = packed[g] & 63;
    *minimum = packed[g + 4] & 63;
    return;
  }
  *scale = (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4;
  *minimum = packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
}

void ConvertQ4_K(const uint8_t* block, size_t num_blocks, float* out) {
  for (size_t b = 0; b < num_blocks; ++b, block += 16 + kSuperBlock / 2, out += kSuperBlock) {
    const float scale_unit = F16ToF32(Load16(block));
    const float minimum_unit = F16ToF32(Load16(block + 2));
    for (int g = 0; g < 8; ++g) {
      int group_scale = 0, group_minimum = 0;
      GroupOfQ4_K(block + 4, g, &group_scale, &group_minimum);
      const float scale = scale_unit * static_cast<float>(group_scale);
      const float minimum = minimum_unit * static_cast<float>(group_minimum);
      const uint8_t* halves = block + 16 + kBlock * (g / 2);
      for (int i = 0; i < kBlock; ++i) {
        const int q = g % 2 == 0 ? halves[i] & 15 : halves[i] >> 4;
        out[kBlock * g + i] = scale * static_cast<float>(q) - minimum;
      }
    }
  }
}

void ConvertQ6_K(const uint8_t* block, size_t num_blocks, float* out) {
  constexpr int kUpper = kSuperBlock / 2, kScales = kUpper + kSuperBlock / 4, kUnit = kScales + 16;
  for (size_t b = 0; b < num_blocks; ++b, block += kUnit + 2, out += kSuperBlock) {
    const float scale_unit = F16ToF32(Load16(block + kUnit));
    for (int i = 0; i < kSuperBlock; ++i) {
      // Runs of 32: in each half of the block, runs 0 and 1 are the low halves of 64 bytes, runs 2
      // and 3 the high ones; the upper two bits of all four runs share 32 bytes.
      const int half = i / 128, run = i / 32 % 4, at = i % 32;
      const uint8_t low_byte = block[64 * half + 32 * (run % 2) + at];
      const int low = run < 2 ? low_byte & 15 : low_byte >> 4;
      const int upper = block[kUpper + 32 * half + at] >> (2 * run) & 3;
      const float scale =
          scale_unit * static_cast<float>(static_cast<int8_t>(block[kScales + i / 16]));
      out[i] = scale * static_cast<float>((low | upper << 4) - 32);
    }
  }
}

}  // namespace

BlockShape BlockShapeOf(StoredType type) {
  switch (type) {
    case StoredType::kF32:
      return {1, 4};
    case StoredType::kF16:
    case StoredType::kBF16:
      return {1, 2};
    case StoredType::kQ8_0:
      return {kBlock, 2 + kBlock};
    case StoredType::kQ4_0:
      return {kBlock, 2 + kBlock / 2};
    case StoredType::kQ4_1:
      return {kBlock, 4 + kBlock / 2};
    case StoredType::kQ5_0:
      return {kBlock, 6 + kBlock / 2};
    case StoredType::kQ5_1:
      return {kBlock, 8 + kBlock / 2};
    case StoredType::kQ4_K:
      return {kSuperBlock, 16 + kSuperBlock / 2};
    case StoredType::kQ6_K:
      return {kSuperBlock, 18 + kSuperBlock / 2 + kSuperBlock / 4};
  }
  return {1, 1};
}

float F16ToF32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = half >> 10 & 31;
  uint32_t fraction = half & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  if (fraction == 0) return std::bit_cast<float>(sign);
  // A denormal half is a normal float: shift its leading one to bit 10.
  const int shift = std::countl_zero(fraction) - 21;
  fraction = fraction << shift & 1023u;
  return std::bit_cast<float>(sign | static_cast<uint32_t>(113 - shift) << 23 | fraction << 13);
}

void ConvertToF32(StoredType type, std::span<const uint8_t> stored, std::span<float> out) {
  const BlockShape block = BlockShapeOf(type);
  const size_t num_blocks = out.size() / static_cast<size_t>(block.elements);
  TITAN_CHECK(num_blocks * static_cast<size_t>(block.elements) == out.size());
  TITAN_CHECK(stored.size() == num_blocks * static_cast<size_t>(block.bytes));
  if (out.empty()) return;
  switch (type) {
    case StoredType::kF32:
      std::memcpy(out.data(), stored.data(), stored.size());
      return;
    case StoredType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = F16ToF32(Load16(&stored[2 * i]));
      return;
    case StoredType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = BF16ToF32(Load16(&stored[2 * i]));
      return;
    case StoredType::kQ8_0:
      return ConvertQ8_0(stored.data(), num_blocks, out.data());
    case StoredType::kQ4_0:
      return ConvertQ4_0(stored.data(), num_blocks, out.data());
    case StoredType::kQ4_1:
      return ConvertQ4_1(stored.data(), num_blocks, out.data());
    case StoredType::kQ5_0:
      return ConvertQ5_0(stored.data(), num_blocks, out.data());
    case StoredType::kQ5_1:
      return ConvertQ5_1(stored.data(), num_blocks, out.data());
    case StoredType::kQ4_K:
      return ConvertQ4_K(stored.data(), num_blocks, out.data());
    case StoredType::kQ6_K:
      return ConvertQ6_K(stored.data(), num_blocks, out.data());
  }
}

Status CleanWeights(std::string_view name, std::span<float> values) {
  constexpr uint32_t kExponent = 0x7f800000u;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t exponent = bits & kExponent;
    if (exponent == kExponent) {
      return InvalidArgument(fmt::format("tensor {}: element {} is {}", name, i, values[i]));
    }
    if (exponent == 0) values[i] = std::bit_cast<float>(bits & 0x80000000u);
  }
  return OkStatus();
}

}  // namespace titan::formats
