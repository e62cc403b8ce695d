// SPDX-License-Identifier: Apache-2.0
//
// Goal: the digest is the one that the format defines, whatever the layout, the cut and the number
// of threads, and every element counts. Method: a slow implementation that works from the
// definition on one element at a time, random shapes around the edges of runs and panels.
#include "weightstore/client/weights_digest.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <random>
#include <vector>

namespace titan::weightstore {
namespace {

TensorEntry Tensor(std::vector<int64_t> shape, Layout layout, DType dtype = DType::kF32,
                   std::string name = "model.layers.0.self_attn.q_proj.weight") {
  TensorEntry tensor{std::move(name), std::move(shape), dtype, layout, 0, 0};
  int64_t elements = NumRows(tensor) * NumColumns(tensor);
  if (layout == Layout::kPanels32) {
    elements = (tensor.shape[0] + 31) / 32 * 32 * tensor.shape[1];
  } else if (layout == Layout::kPanels32K2) {
    elements = (tensor.shape[0] + 31) / 32 * 32 * ((tensor.shape[1] + 1) / 2 * 2);
  }
  tensor.num_bytes = static_cast<uint64_t>(elements * ElementBytes(dtype));
  return tensor;
}

size_t PlaceOf(const TensorEntry& tensor, int64_t row, int64_t column) {
  const int64_t columns = NumColumns(tensor);
  int64_t element = row * columns + column;
  if (tensor.layout == Layout::kPanels32) {
    element = (row / 32 * columns + column) * 32 + row % 32;
  } else if (tensor.layout == Layout::kPanels32K2) {
    // Words of two elements, the even column in the upper half: little-endian, the second element.
    element = ((row / 32 * ((columns + 1) / 2) + column / 2) * 32 + row % 32) * 2;
    if (column % 2 == 0) ++element;
  }
  return static_cast<size_t>(element * ElementBytes(tensor.dtype));
}

// From the definition: bytes gathered one element at a time, 128-bit sums by the compiler's own
// type.
Hash128 SlowDigest(const TensorEntry& tensor, const std::vector<std::byte>& data) {
  unsigned __int128 sum = 0;
  const uint64_t seed = XXH3_64bits(tensor.name.data(), tensor.name.size());
  const int64_t columns = NumColumns(tensor);
  const size_t size = static_cast<size_t>(ElementBytes(tensor.dtype));
  for (int64_t row = 0; row < NumRows(tensor); ++row) {
    for (int64_t start = 0; start < columns; start += 256) {
      const uint32_t count = static_cast<uint32_t>(std::min<int64_t>(256, columns - start));
      std::string message;
      uint64_t index = static_cast<uint64_t>(row * columns + start);
      for (int i = 0; i < 8; ++i, index >>= 8) message += static_cast<char>(index & 255);
      for (int i = 0; i < 4; ++i) message += static_cast<char>(count >> (8 * i) & 255);
      for (uint32_t i = 0; i < count; ++i) {
        message.append(reinterpret_cast<const char*>(&data[PlaceOf(tensor, row, start + i)]), size);
      }
      const XXH128_hash_t hash = XXH3_128bits_withSeed(message.data(), message.size(), seed);
      sum += (static_cast<unsigned __int128>(hash.high64) << 64) | hash.low64;
    }
  }
  return {static_cast<uint64_t>(sum), static_cast<uint64_t>(sum >> 64)};
}

std::vector<std::byte> RandomBytes(size_t size, std::mt19937_64& random) {
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// The same values as panels, random bytes in the pad lanes.
std::vector<std::byte> ToPanels(const TensorEntry& rows, const std::vector<std::byte>& data,
                                const TensorEntry& panels, std::mt19937_64& random) {
  std::vector<std::byte> out = RandomBytes(panels.num_bytes, random);
  for (int64_t row = 0; row < NumRows(rows); ++row) {
    for (int64_t column = 0; column < NumColumns(rows); ++column) {
      std::memcpy(&out[PlaceOf(panels, row, column)], &data[PlaceOf(rows, row, column)],
                  static_cast<size_t>(ElementBytes(rows.dtype)));
    }
  }
  return out;
}

TEST(WeightsDigestTest, EqualsTheDefinitionInBothLayoutsForEveryKindOfTail) {
  std::mt19937_64 random(1);
  for (const int64_t n : {1, 2, 31, 32, 33, 70}) {
    for (const int64_t k : {1, 3, 4, 5, 255, 256, 257, 511, 512, 770}) {
      const TensorEntry rows = Tensor({n, k}, Layout::kRows);
      const TensorEntry panels = Tensor({n, k}, Layout::kPanels32);
      const auto data = RandomBytes(rows.num_bytes, random);
      const auto packed = ToPanels(rows, data, panels, random);
      const Hash128 expected = SlowDigest(rows, data);
      EXPECT_EQ(TensorDigest(rows, data.data()), expected) << n << "x" << k;
      EXPECT_EQ(TensorDigest(panels, packed.data()), expected) << n << "x" << k;
      EXPECT_EQ(SlowDigest(panels, packed), expected) << n << "x" << k;
    }
  }
}

TEST(WeightsDigestTest, Bf16PanelsHaveTheDigestOfBf16RowsAndNotThatOfTheSameF32Values) {
  std::mt19937_64 random(6);
  for (const int64_t n : {1, 2, 31, 32, 33, 70}) {
    for (const int64_t k : {1, 2, 3, 7, 8, 9, 255, 256, 257, 511, 512, 513, 770, 771}) {
      const TensorEntry rows = Tensor({n, k}, Layout::kRows, DType::kBf16);
      const TensorEntry panels = Tensor({n, k}, Layout::kPanels32K2, DType::kBf16);
      const auto data = RandomBytes(rows.num_bytes, random);
      const auto packed = ToPanels(rows, data, panels, random);
      const Hash128 expected = SlowDigest(rows, data);
      EXPECT_EQ(TensorDigest(rows, data.data()), expected) << n << "x" << k;
      EXPECT_EQ(TensorDigest(panels, packed.data()), expected) << n << "x" << k;
      const TensorEntry wide = Tensor({n, k}, Layout::kRows, DType::kF32);
      std::vector<std::byte> values(wide.num_bytes, std::byte{0});
      for (size_t i = 0; i < data.size() / 2; ++i) {
        std::memcpy(&values[4 * i + 2], &data[2 * i], 2);
      }
      EXPECT_NE(TensorDigest(wide, values.data()), expected) << n << "x" << k;
    }
  }
}

TEST(WeightsDigestTest, CoversVectorsScalarsHigherRanksAndTwoByteTypes) {
  std::mt19937_64 random(2);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {1}, {300}, {3, 5, 257}}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
      const TensorEntry tensor = Tensor(shape, Layout::kRows, dtype);
      const auto data = RandomBytes(tensor.num_bytes, random);
      EXPECT_EQ(TensorDigest(tensor, data.data()), SlowDigest(tensor, data));
    }
  }
}

TEST(WeightsDigestTest, AKnownAnswerHoldsForEver) {
  const TensorEntry tensor = Tensor({2, 3}, Layout::kRows, DType::kF32, "w");
  const float values[] = {0.0f, -0.0f, 1.0f, -2.5f, 3e-40f, 7.0f};
  Hash128 digest = TensorDigest(tensor, reinterpret_cast<const std::byte*>(values));
  // Computed from the definition with another binding of xxHash.
  EXPECT_EQ(ToHex(digest), "3247c12e38e8ba81467e67b17e87fb0f");
}

TEST(WeightsDigestTest, EveryElementItsPlaceAndTheNameCount) {
  std::mt19937_64 random(3);
  const TensorEntry tensor = Tensor({37, 300}, Layout::kPanels32);
  auto data = RandomBytes(tensor.num_bytes, random);
  const Hash128 before = TensorDigest(tensor, data.data());
  for (int i = 0; i < 500; ++i) {
    const size_t place =
        PlaceOf(tensor, static_cast<int64_t>(random() % 37), static_cast<int64_t>(random() % 300)) +
        random() % 4;
    const std::byte bit = static_cast<std::byte>(1u << random() % 8);
    data[place] ^= bit;
    EXPECT_NE(TensorDigest(tensor, data.data()), before);
    data[place] ^= bit;
  }
  data[PlaceOf(tensor, 40, 7)] ^= std::byte{1};  // a pad lane
  EXPECT_EQ(TensorDigest(tensor, data.data()), before);
  TensorEntry renamed = tensor;
  renamed.name += "x";
  EXPECT_NE(TensorDigest(renamed, data.data()), before);
  // Two rows exchanged: same bytes, other places.
  const TensorEntry rows = Tensor({2, 256}, Layout::kRows);
  auto two = RandomBytes(rows.num_bytes, random);
  const Hash128 first = TensorDigest(rows, two.data());
  std::rotate(two.begin(), two.begin() + 1024, two.end());
  EXPECT_NE(TensorDigest(rows, two.data()), first);
}

TEST(WeightsDigestTest, PartsAddUpAndThreadsDoNotMatter) {
  std::mt19937_64 random(4);
  Manifest manifest;
  uint64_t offset = 0;
  for (int i = 0; i < 6; ++i) {
    const int64_t n = 1 + static_cast<int64_t>(random() % 900),
                  k = 1 + static_cast<int64_t>(random() % 3000);
    const Layout layout = i % 3 == 0   ? Layout::kPanels32
                          : i % 3 == 1 ? Layout::kPanels32K2
                                       : Layout::kRows;
    const DType dtype = i % 3 == 1 ? DType::kBf16 : DType::kF32;
    TensorEntry tensor = Tensor({n, k}, layout, dtype, "tensor" + std::to_string(i));
    tensor.offset = offset;
    offset += (tensor.num_bytes + 255) / 256 * 256;
    manifest.tensors.push_back(tensor);
  }
  manifest.slot_bytes = offset;
  ASSERT_TRUE(Validate(manifest).ok()) << Validate(manifest);
  const auto slot = RandomBytes(manifest.slot_bytes, random);
  Hash128 sum;
  for (const TensorEntry& tensor : manifest.tensors) {
    const int64_t middle = NumRows(tensor) / 2 / 32 * 32;
    sum += TensorRowsDigest(tensor, slot.data() + tensor.offset, middle, NumRows(tensor));
    sum += TensorRowsDigest(tensor, slot.data() + tensor.offset, 0, middle);
  }
  for (const int threads : {1, 2, 3, 8}) {
    EXPECT_EQ(WeightsDigest(manifest, slot, threads), sum) << threads;
  }
}

}  // namespace
}  // namespace titan::weightstore
