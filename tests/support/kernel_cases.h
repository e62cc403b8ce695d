// SPDX-License-Identifier: Apache-2.0
//
// What kernel tests share: operands from Philox with wide exponents, buffers whose surroundings are
// poisoned with NaN and checked, bit comparison, and the list of instruction sets of this machine.
#ifndef TITAN_TESTS_SUPPORT_KERNEL_CASES_H_
#define TITAN_TESTS_SUPPORT_KERNEL_CASES_H_

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/kernels/bf16.h"
#include "core/kernels/isa.h"
#include "core/kernels/isa_check.h"

namespace titan::kernels::tests {

inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

inline int64_t CountDifferentBits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return -1;
  int64_t differing = 0;
  for (size_t i = 0; i < a.size(); ++i) differing += BitsOf(a[i]) != BitsOf(b[i]);
  return differing;
}

// AVX2, and AVX-512 where the CPU has it.
inline std::vector<Isa> AllIsas() {
  std::vector<Isa> isas = {Isa::kAvx2};
  const StatusOr<Isa> best = DetectIsa();
  if (best.ok() && *best == Isa::kAvx512) isas.push_back(Isa::kAvx512);
  return isas;
}

// The sets of this CPU that products of such inputs run on, as SetIsa takes them: vdpbf16ps
// multiplies rounded rows alone.
inline std::vector<std::string> IsaNames(Inputs inputs) {
  std::vector<std::string> names;
  for (const Isa isa : AllIsas()) names.emplace_back(IsaName(isa));
  if (inputs == Inputs::kBf16 && CheckIsa("avx512_bf16").ok()) names.push_back("avx512_bf16");
  return names;
}

// True under the argument --all_inputs (or --all_inputs was given to InitCases).
inline bool& AllInputs() {
  static bool all = [] {
    for (const std::string& argument : ::testing::internal::GetArgvs()) {
      if (argument == "--all_inputs") return true;
    }
    return false;
  }();
  return all;
}

// Deterministic numbers of one test.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint32_t Word() { return RandomWord(seed_, RandomDomain::kSampling, counter_++, 77, 0); }
  // Uniform in [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low +
           static_cast<int64_t>((uint64_t{Word()} * static_cast<uint64_t>(high - low + 1)) >> 32);
  }
  float Uniform() { return static_cast<float>(UniformFromWord(Word()) * 2.0 - 1.0); }
  // Sign and mantissa uniform, exponent spread over 2^-12 .. 2^3: sums round differently in every
  // order.
  float Wide() {
    const int64_t exponent = Between(-12, 3);
    return Uniform() * static_cast<float>(exponent < 0 ? 1.0 / (1 << -exponent) : 1 << exponent);
  }

 private:
  uint64_t seed_;
  uint32_t counter_ = 0;
};

// An array of n floats between two poisoned margins, at an odd offset so that nothing is aligned.
class Guarded {
 public:
  Guarded(int64_t n, uint64_t seed) : n_(n), seed_(seed), store_(n + 2 * kMargin + 1, Poison()) {}
  ~Guarded() {
    for (int64_t i = 0; i <= kMargin; ++i) {
      EXPECT_EQ(BitsOf(store_[i]), BitsOf(Poison())) << "written before the array";
    }
    for (int64_t i = 0; i < kMargin; ++i) {
      EXPECT_EQ(BitsOf(store_[kMargin + 1 + n_ + i]), BitsOf(Poison()))
          << "written after the array";
    }
  }
  float* data() { return store_.data() + kMargin + 1; }
  int64_t size() const { return n_; }
  std::span<const float> span() { return {data(), static_cast<size_t>(n_)}; }
  void FillWide(uint64_t salt, float scale = 1.0f) {
    Random random(seed_ * 1000003 + salt);
    for (int64_t i = 0; i < n_; ++i) data()[i] = random.Wide() * scale;
  }
  void FillPoison() {
    for (int64_t i = 0; i < n_; ++i) data()[i] = Poison();
  }

 private:
  static constexpr int64_t kMargin = 64;
  static float Poison() { return std::bit_cast<float>(0x7fa0dead); }

  int64_t n_;
  uint64_t seed_;
  std::vector<float> store_;
};

}  // namespace titan::kernels::tests

#endif  // TITAN_TESTS_SUPPORT_KERNEL_CASES_H_
