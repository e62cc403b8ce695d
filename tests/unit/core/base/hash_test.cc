// SPDX-License-Identifier: Apache-2.0
// Goal: the hashes are xxh3 as published, and the 128-bit sums wrap as the weights digest needs.
#include "core/base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/base/hash_stream.h"

namespace titan {
namespace {

TEST(HashTest, EmptyInputHasThePublishedValue) {
  EXPECT_EQ(Hash64("", 0), 0x2D06800538D394C2ull);  // XXH3_64bits of nothing, seed 0
  EXPECT_EQ(ToHex(Hash128Of("", 0, 0)), "99aa06d3014798d86001c324468d497f");
}

TEST(HashTest, FieldsAreHashedAsLittleEndianBytes) {
  const unsigned char bytes[12] = {8, 7, 6, 5, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa};
  EXPECT_EQ(HashFields(uint64_t{0x0102030405060708}, uint32_t{0x0a0b0c0d}), Hash64(bytes, 12));
}

TEST(HashTest, SumCarriesIntoTheHighHalfAndWrapsAtTheTop) {
  Hash128 sum{~0ull, ~0ull};
  sum += Hash128{1, 0};
  EXPECT_EQ(sum, (Hash128{0, 0}));
  sum = Hash128{~0ull, 1};
  sum += Hash128{2, 3};
  EXPECT_EQ(sum, (Hash128{1, 5}));
}

TEST(HashTest, HexRoundTripsAndRefusesOtherText) {
  const Hash128 value{0x0123456789abcdefull, 0xfedcba9876543210ull};
  EXPECT_EQ(ToHex(value), "fedcba98765432100123456789abcdef");
  Hash128 back;
  ASSERT_TRUE(FromHex(ToHex(value), &back));
  EXPECT_EQ(back, value);
  EXPECT_FALSE(FromHex("fedcba98765432100123456789abcde", &back));
  EXPECT_FALSE(FromHex("FEDCBA98765432100123456789ABCDEF", &back));
}

TEST(HashTest, PartsHashLikeTheWhole) {
  std::string bytes(5000, ' ');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(HashFields(uint64_t{i}));
  Hash128Stream stream;
  EXPECT_EQ(stream.Digest(), Hash128Of("", 0, 0));
  for (const size_t step : {size_t{1}, size_t{63}, size_t{240}, size_t{1024}, bytes.size()}) {
    stream.Reset();
    for (size_t at = 0; at < bytes.size(); at += step) {
      const size_t take = std::min(step, bytes.size() - at);
      stream.Add(bytes.data() + at, take);
      ASSERT_EQ(stream.Digest(), Hash128Of(bytes.data(), at + take, 0)) << step << " " << at;
    }
  }
}

}  // namespace
}  // namespace titan
