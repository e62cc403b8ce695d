// SPDX-License-Identifier: Apache-2.0
//
// Operands and poisoned outputs for the kernel tests: reproducible, with exponents wide enough that
// a changed order of additions changes bits in almost every output.
#ifndef TITAN_TESTS_SUPPORT_KERNEL_DATA_H_
#define TITAN_TESTS_SUPPORT_KERNEL_DATA_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace titan::testing {

// A small generator of its own (splitmix64), so that test data depends on nothing in the product.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  // Uniform in (-1, 1).
  float Uniform() { return static_cast<float>(static_cast<int32_t>(Next() >> 32)) * 0x1p-31f; }
  // Sign and fraction uniform, exponent uniform in [-spread, spread].
  float Wide(int spread) {
    const uint64_t bits = Next();
    const uint32_t exponent =
        static_cast<uint32_t>(127 - spread + static_cast<int>((bits >> 32) % (2 * spread + 1)));
    return std::bit_cast<float>(static_cast<uint32_t>(bits & 0x807fffffu) | exponent << 23);
  }

 private:
  uint64_t state_;
};

inline std::vector<float> UniformFloats(int64_t n, uint64_t seed, float scale = 1.0f) {
  TestRandom random(seed);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = random.Uniform() * scale;
  return out;
}

inline std::vector<float> WideFloats(int64_t n, uint64_t seed, int spread = 12) {
  TestRandom random(seed);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = random.Wide(spread);
  return out;
}

// A signalling pattern that no kernel writes: what was not written is seen, and what is wrongly
// read turns results into NaN.
inline constexpr uint32_t kPoison = 0x7fa5a5a5u;

inline std::vector<float> PoisonedFloats(int64_t n) {
  return std::vector<float>(static_cast<size_t>(n), std::bit_cast<float>(kPoison));
}

inline bool IsPoison(float x) { return std::bit_cast<uint32_t>(x) == kPoison; }

inline bool SameBits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_KERNEL_DATA_H_
