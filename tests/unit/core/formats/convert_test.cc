// SPDX-License-Identifier: Apache-2.0
// Goal: stored numbers become f32 exactly, denormals are flushed, NaN and infinity are refused.
// Method: all 65536 halves against the definition in double; hand-made blocks; bit patterns.
#include "core/formats/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace titan::formats {
namespace {

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(ConvertTest, EveryHalfHasItsValue) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const int exponent = static_cast<int>(h >> 10 & 31);
    const double fraction = h & 1023;
    const double sign = h & 0x8000 ? -1 : 1;
    const float got = F16ToF32(static_cast<uint16_t>(h));
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(got), fraction != 0) << h;
      ASSERT_EQ(std::isinf(got), fraction == 0) << h;
      continue;
    }
    const double value =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(Bits(got), Bits(static_cast<float>(sign * value))) << h;
  }
}

TEST(ConvertTest, BlocksFollowTheirLayout) {
  std::vector<uint8_t> q8 = {0x00, 0x38};  // d = 0.5
  for (int i = 0; i < 32; ++i) q8.push_back(static_cast<uint8_t>(i * 8 - 128));
  std::vector<float> out(32);
  ConvertToF32(StoredType::kQ8_0, q8, out);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 0.5f * (i * 8 - 128));

  std::vector<uint8_t> q4 = {0x00, 0x34, 0x00, 0xbc};  // d = 0.25, m = -1
  for (int i = 0; i < 16; ++i) q4.push_back(static_cast<uint8_t>(i | (15 - i) << 4));
  ConvertToF32(StoredType::kQ4_1, q4, out);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], 0.25f * i - 1);
    EXPECT_EQ(out[static_cast<size_t>(i + 16)], 0.25f * (15 - i) - 1);
  }

  const std::vector<uint8_t> bf16 = {0x80, 0x3f, 0x49, 0xc0};
  std::vector<float> two(2);
  ConvertToF32(StoredType::kBF16, bf16, two);
  EXPECT_EQ(two[0], 1.0f);
  EXPECT_EQ(Bits(two[1]), 0xc0490000u);
}

TEST(ConvertTest, CleaningFlushesDenormalsAndKeepsTheSign) {
  std::vector<float> values;
  for (const uint32_t bits : {0x00000001u, 0x807fffffu, 0x00800000u, 0x80000000u, 0x3f800001u}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  ASSERT_TRUE(CleanWeights("w", values).ok());
  const uint32_t want[] = {0u, 0x80000000u, 0x00800000u, 0x80000000u, 0x3f800001u};
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(Bits(values[i]), want[i]) << i;
}

TEST(ConvertTest, CleaningRefusesWhatIsNotFinite) {
  for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u}) {
    std::vector<float> values(5, 1.0f);
    values[3] = std::bit_cast<float>(bits);
    const Status status = CleanWeights("model.norm.weight", values);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(status), ::testing::HasSubstr("model.norm.weight: element 3"));
  }
}

}  // namespace
}  // namespace titan::formats
