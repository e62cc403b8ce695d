// SPDX-License-Identifier: Apache-2.0
#include "core/formats/convert.h"

#include <fmt/format.h>

#include <cstring>

#include "core/base/check.h"

namespace titan::formats {
namespace {

constexpr int kBlock = 32;

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
    case StoredType::kQ4_1:
      return {kBlock, 4 + kBlock / 2};
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
    case StoredType::kQ4_1:
      return ConvertQ4_1(stored.data(), num_blocks, out.data());
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
