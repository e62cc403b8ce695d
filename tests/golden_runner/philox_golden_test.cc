// SPDX-License-Identifier: Apache-2.0
// Goal: our generator equals the published Philox answers, and the uniform conventions are numpy's.
// Method: every case of tests/golden/philox, word for word.
#include <gtest/gtest.h>

#include "core/base/philox.h"
#include "tests/support/golden.h"

namespace titan {
namespace {

using golden::GoldenFile;

std::string CheckBlock(const nlohmann::json& c, int rounds) {
  const auto counter = c["counter"].get<PhiloxCounter>();
  const auto key = c["key"].get<PhiloxKey>();
  EXPECT_EQ(Philox4x32(counter, key, rounds), c["out"].get<PhiloxCounter>());
  return "";
}

TEST(PhiloxGolden, TenRounds) {
  GoldenFile file("philox/philox4x32_10.json");
  file.Run([](const nlohmann::json& c) { return CheckBlock(c, 10); });
  file.ExpectSkipped(0);
}

TEST(PhiloxGolden, SevenRounds) {
  GoldenFile file("philox/philox4x32_7.json");
  file.Run([](const nlohmann::json& c) { return CheckBlock(c, 7); });
  file.ExpectSkipped(0);
}

// The product draws with UniformFromWord: the centre of the cell that "top 24 bits times 2^-24"
// names, so the two differ by exactly half a cell. The other conventions of the file are facts
// about libraries.
TEST(PhiloxGolden, Uniform) {
  GoldenFile file("philox/uniform.json");
  file.Run([](const nlohmann::json& c) -> std::string {
    for (const auto& [key, value] : c.items()) {
      if (key.rfind("top24_times_2^-24", 0) != 0) continue;
      const double cell = value.get<double>();
      EXPECT_EQ(UniformFromWord(c["u32"].get<uint32_t>()), cell + 0x1p-25);
      return "";
    }
    return "no value of the convention top24_times_2^-24";
  });
  file.ExpectSkipped(0);
}

// The 64-bit variant is not used by the product (numerics.md section 9 names Philox4x32-10 only).
TEST(PhiloxGolden, WideVariantIsListed) {
  GoldenFile file("philox/philox4x64_10.json");
  file.Run(
      [](const nlohmann::json&) -> std::string { return "Philox4x64 is not part of the product"; });
  if (golden::IsDefaultGoldenDir()) {
    EXPECT_EQ(file.num_skipped(), 8);
  }
}

}  // namespace
}  // namespace titan
