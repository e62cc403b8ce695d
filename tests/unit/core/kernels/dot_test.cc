// SPDX-License-Identifier: Apache-2.0
//
// Mode BF16: linear, weight gradient and head with Inputs::kBf16 have the bits of the scalar
// reference on the rounded rows, whichever instructions run them; the probe admits a dot product of
// the defined order and refuses every other one.
#include "core/kernels/dot.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/kernels/head.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/reference_head.h"
#include "core/kernels/reference_linear.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernel_data.h"

namespace titan::kernels {
namespace {

using titan::testing::PoisonedFloats;
using titan::testing::SameBits;
using titan::testing::TestRandom;
using titan::testing::UniformFloats;
using titan::testing::WideFloats;

float Upper(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
float Lower(uint32_t pair) { return std::bit_cast<float>(pair << 16); }

template <float (*kStep)(float, uint32_t, uint32_t)>
void Step16(const uint32_t* x, const uint32_t* w, float* acc) {
  for (int i = 0; i < 16; ++i) acc[i] = kStep(acc[i], x[i], w[i]);
}

float LowerFirst(float acc, uint32_t x, uint32_t w) {
  return std::fma(Upper(x), Upper(w), std::fma(Lower(x), Lower(w), acc));
}
float PairThenSum(float acc, uint32_t x, uint32_t w) {
  return acc + std::fma(Upper(x), Upper(w), Lower(x) * Lower(w));
}
float RoundedOnce(float acc, uint32_t x, uint32_t w) {  // but for sums beyond a double
  return static_cast<float>(static_cast<double>(Upper(x)) * Upper(w) +
                            static_cast<double>(Lower(x)) * Lower(w) + acc);
}
float ProductsRounded(float acc, uint32_t x, uint32_t w) {
  return (acc + Upper(x) * Upper(w)) + Lower(x) * Lower(w);
}
float KeepsDenormals(float acc, uint32_t x, uint32_t w) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved & ~0x8040u);
  const float sum = reference::DotStep(acc, x, w);
  _mm_setcsr(saved);
  return sum;
}
float LosesTheSignOfZero(float acc, uint32_t x, uint32_t w) {
  const float sum = reference::DotStep(acc, x, w);
  return sum == 0 ? 0.0f : sum;
}
float SaturatesAtTheLargest(float acc, uint32_t x, uint32_t w) {
  const float sum = reference::DotStep(acc, x, w);
  return std::isinf(sum) ? std::copysign(std::numeric_limits<float>::max(), sum) : sum;
}

TEST(DotProbeTest, AdmitsTheDefinedStepAndNoOther) {
  EXPECT_TRUE(internal::DotStepIsAsDefined(&Step16<reference::DotStep>));
  EXPECT_FALSE(internal::DotStepIsAsDefined(&Step16<LowerFirst>));
  EXPECT_FALSE(internal::DotStepIsAsDefined(&Step16<PairThenSum>));
  EXPECT_FALSE(internal::DotStepIsAsDefined(&Step16<RoundedOnce>));
  EXPECT_FALSE(internal::DotStepIsAsDefined(&Step16<ProductsRounded>));
  EXPECT_FALSE(internal::DotStepIsAsDefined(&Step16<KeepsDenormals>));
  EXPECT_FALSE(internal::DotStepIsAsDefined(&Step16<LosesTheSignOfZero>));
  EXPECT_FALSE(internal::DotStepIsAsDefined(&Step16<SaturatesAtTheLargest>));
}

// pairs[16] of x[32] by a rounding of one float.
template <uint16_t (*kRound)(float)>
void Pairs16(const float* x, uint32_t* pairs) {
  for (int i = 0; i < 16; ++i) {
    pairs[i] = static_cast<uint32_t>(kRound(x[2 * i])) << 16 | kRound(x[2 * i + 1]);
  }
}
uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }
uint16_t Defined(float x) { return RoundToBf16(x).bits; }
uint16_t CutOff(float x) {
  return std::isnan(x) ? Defined(x) : Defined(std::bit_cast<float>(BitsOf(x) & 0xffff0000u));
}
uint16_t TiesAway(float x) {
  const bool finite = (BitsOf(x) & 0x7f800000u) - 0x00800000u < 0x7f000000u;
  return finite ? static_cast<uint16_t>((BitsOf(x) + 0x8000u) >> 16) : Defined(x);
}
uint16_t KeepsDenormalFloats(float x) {
  return BitsOf(x) << 1 < 0x01000000u ? static_cast<uint16_t>(BitsOf(x) >> 16) : Defined(x);
}
uint16_t KeepsThePayload(float x) {
  return std::isnan(x) ? static_cast<uint16_t>(BitsOf(x) >> 16 | 0x40u) : Defined(x);
}
void OddAbove(const float* x, uint32_t* pairs) {
  Pairs16<Defined>(x, pairs);
  for (int i = 0; i < 16; ++i) pairs[i] = std::rotl(pairs[i], 16);
}

TEST(DotProbeTest, AdmitsTheDefinedRoundingAndNoOther) {
  EXPECT_TRUE(internal::RoundingIsAsDefined(&Pairs16<Defined>));
  EXPECT_FALSE(internal::RoundingIsAsDefined(&Pairs16<CutOff>));
  EXPECT_FALSE(internal::RoundingIsAsDefined(&Pairs16<TiesAway>));
  EXPECT_FALSE(internal::RoundingIsAsDefined(&Pairs16<KeepsDenormalFloats>));
  EXPECT_FALSE(internal::RoundingIsAsDefined(&Pairs16<KeepsThePayload>));
  EXPECT_FALSE(internal::RoundingIsAsDefined(&OddAbove));
}

TEST(DotProbeTest, WhatIsInUseFollowsTheProbeAndTheForcedSet) {
  if (!internal::CpuHasDot()) {
    EXPECT_FALSE(internal::DotIsAdmitted());
    EXPECT_EQ(SetIsa("avx512_bf16").code(), StatusCode::kFailedPrecondition);
    EXPECT_FALSE(DotInUse());
    GTEST_SKIP() << "this CPU has no AVX512_BF16";
  }
  EXPECT_EQ(internal::DotIsAdmitted(),
            internal::DotStepIsAsDefined(&internal::HardwareDotStep16) &&
                internal::RoundingIsAsDefined(&internal::HardwareRoundPairs16));
  EXPECT_EQ(SetIsa("avx512_bf16").ok(), internal::DotIsAdmitted());
  ASSERT_TRUE(SetIsa("avx512").ok());
  EXPECT_FALSE(DotInUse());
  EXPECT_EQ(CurrentIsaName(), "avx512");
  ASSERT_TRUE(SetIsa("avx2").ok());
  EXPECT_FALSE(DotInUse());
  ASSERT_TRUE(SetIsa("auto").ok());
  EXPECT_EQ(DotInUse(), internal::DotIsAdmitted());
  EXPECT_EQ(CurrentIsaName(), DotInUse() ? "avx512_bf16" : "avx512");
  EXPECT_EQ(CurrentIsa(), Isa::kAvx512);
}

// Operands of one product: values with many more bits than a bfloat16 has, and edge values.
struct Operands {
  Operands(int64_t m, int64_t n, int64_t k, uint64_t seed, bool edges = true)
      : ldx(k + 3), x(PoisonedFloats(m * ldx + 1)) {
    const std::vector<float> values = WideFloats(m * k, seed), w = WideFloats(n * k, seed + 1);
    TestRandom random(seed);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        float value = values[static_cast<size_t>(r * k + i)];
        const float edge[] = {-0.0f, 1e-40f, -1e-39f, 0x1.01p0f, -0x1.03p-60f, 0x1p-126f};
        if (edges && random.Below(50) == 0) value = edge[random.Below(6)];
        x[static_cast<size_t>(1 + r * ldx + i)] = value;
        x_rounded.push_back(ToFloat(RoundToBf16(value)));
      }
    }
    for (const float v : w) w_rounded.push_back(ToFloat(RoundToBf16(v)));
    panels.resize(static_cast<size_t>(PanelElements(Element::kBf16, n, k)) + 1);
    Pool pool(2);
    EXPECT_TRUE(PackPanels(pool, w.data(), n, k, panels.data() + 1));
  }
  const float* rows() const { return x.data() + 1; }

  int64_t ldx;
  std::vector<float> x, x_rounded, w_rounded;  // x strided; the others dense
  std::vector<BFloat16> panels;                // from 1 on
};

class Bf16ModeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa("auto").ok()); }

  void CheckLinear(int64_t m, int64_t n, int64_t k, int leaves, bool with_bias, int threads,
                   uint64_t seed) {
    const Operands o(m, n, k, seed);
    const int64_t ldo = n + 5;
    const std::vector<float> bias = WideFloats(n, seed + 2);
    const float* b = with_bias ? bias.data() : nullptr;
    std::vector<float> got = PoisonedFloats(m * ldo + 1), expected = got;
    std::vector<float> wanted(static_cast<size_t>(m * n));
    Pool pool(threads);
    Linear(pool, {o.rows(), o.ldx, m, k, Inputs::kBf16},
           {o.panels.data() + 1, n, leaves, b, got.data() + 1, ldo});
    reference::Linear(o.x_rounded.data(), k, m, o.w_rounded.data(), n, k, leaves, b, wanted.data(),
                      n);
    for (int64_t r = 0; r < m; ++r) {
      std::copy_n(wanted.data() + r * n, n, expected.data() + 1 + r * ldo);  // gaps stay poison
    }
    EXPECT_TRUE(SameBits(got.data(), expected.data(), m * ldo + 1))
        << "m " << m << " n " << n << " k " << k << " leaves " << leaves << " threads " << threads;
  }

  NumericThread environment_;
};

TEST_P(Bf16ModeTest, LinearEqualsTheReferenceOnRoundedRowsForEveryNumberOfRows) {
  std::vector<int64_t> row_counts = {31, 32, 33, 63, 64, 65, 127, 128, 129, 1000};
  for (int64_t m = 1; m <= 30; ++m) row_counts.push_back(m);
  for (const int64_t m : row_counts) {
    CheckLinear(m, 71, 136, 4, true, 2, 100 + static_cast<uint64_t>(m));
  }
}

TEST_P(Bf16ModeTest, LinearEqualsTheReferenceForFewRowsOfManyPanels) {
  for (int64_t m = 1; m <= 6; ++m) {
    for (const int leaves : {1, 2, 4, 8}) {
      CheckLinear(m, 288 + m % 3 * 20, leaves == 1 ? 33 : leaves * 18, leaves, true,
                  1 + static_cast<int>(m % 3), 300 + static_cast<uint64_t>(m));
    }
  }
}

TEST_P(Bf16ModeTest, LinearEqualsTheReferenceForOddSizesEveryLeafCountAndThreadCount) {
  TestRandom random(7);
  for (int round = 0; round < 96; ++round) {
    const int leaves = 1 << (round % 4);
    const int64_t m = 1 + random.Below(40), n = 1 + random.Below(150);
    const int64_t k = leaves == 1 ? 1 + random.Below(700) : leaves * 2 * (1 + random.Below(60));
    CheckLinear(m, n, k, leaves, round % 2 == 0, 1 + round % 4,
                1000 + static_cast<uint64_t>(round));
  }
}

// Beyond the length up to which a chain is run in one go, parts of it are parked in memory.
TEST_P(Bf16ModeTest, LinearEqualsTheReferenceForLongChains) {
  for (const int64_t m : {1, 3, 29, 150}) {
    CheckLinear(m, 37, 2501, 1, true, 1, 50 + static_cast<uint64_t>(m));
    CheckLinear(m, 37, 8 * 1282, 8, true, 3, 60 + static_cast<uint64_t>(m));
  }
}

// A row's bits do not depend on what stands beside it.
TEST_P(Bf16ModeTest, ARowsBitsAreItsOwn) {
  constexpr int64_t kM = 45, kN = 96, kK = 512;
  const Operands o(kM, kN, kK, 5);
  std::vector<float> whole(kM * kN), part(kM * kN);
  Pool pool(3), one(1);
  Linear(pool, {o.rows(), o.ldx, kM, kK, Inputs::kBf16},
         {o.panels.data() + 1, kN, 2, nullptr, whole.data(), kN});
  for (int64_t first = 0, rows = 1; first < kM; first += rows, rows = rows % 9 + 1) {
    rows = std::min(rows, kM - first);
    Linear(one, {o.rows() + first * o.ldx, o.ldx, rows, kK, Inputs::kBf16},
           {o.panels.data() + 1, kN, 2, nullptr, part.data() + first * kN, kN});
  }
  EXPECT_TRUE(SameBits(whole.data(), part.data(), kM * kN));
}

// A thread packs a group of few rows where it had packed a block of another group, and may then
// take a task of that block again, from the end of another thread's share. Who is there first
// decides, so it is tried often.
TEST_P(Bf16ModeTest, GroupsOfFewRowsLeaveTheRowsOfOthersAlone) {
  constexpr int64_t kMany = 29, kFew = 1, kN = 1024, kFewN = 64, kK = 64;
  const Operands many(kMany, kN, kK, 11), few(kFew, kFewN, kK, 12);
  Pool pool(2);
  const auto run = [&](float* out, float* few_out, bool together) {
    const LinearMatrix matrices[] = {{many.panels.data() + 1, kN, 1, nullptr, out, kN},
                                     {few.panels.data() + 1, kFewN, 1, nullptr, few_out, kFewN}};
    const LinearGroup groups[] = {
        {{many.rows(), many.ldx, kMany, kK, Inputs::kBf16}, std::span(matrices, 1)},
        {{few.rows(), few.ldx, kFew, kK, Inputs::kBf16}, std::span(matrices + 1, 1)}};
    if (together) return LinearGroups(pool, groups);
    for (const LinearGroup& group : groups) Linear(pool, group.rows, group.matrices);
  };
  std::vector<float> wanted(kMany * kN), few_wanted(kFewN);
  run(wanted.data(), few_wanted.data(), false);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> out(kMany * kN), few_out(kFewN);
    run(out.data(), few_out.data(), true);
    ASSERT_TRUE(SameBits(out.data(), wanted.data(), kMany * kN)) << "round " << round;
    ASSERT_TRUE(SameBits(few_out.data(), few_wanted.data(), kFewN)) << "round " << round;
  }
}

// Vacuity guard: unrounded rows, or the lower halves first, give other bits.
TEST_P(Bf16ModeTest, UnroundedRowsOrLowerHalvesFirstDiffer) {
  constexpr int64_t kM = 20, kN = 64, kK = 96;
  const Operands o(kM, kN, kK, 3, /*edges=*/false);
  std::vector<float> got(kM * kN), unrounded(kM * kN);
  Pool pool(2);
  Linear(pool, {o.rows(), o.ldx, kM, kK, Inputs::kBf16},
         {o.panels.data() + 1, kN, 1, nullptr, got.data(), kN});
  Linear(pool, {o.rows(), o.ldx, kM, kK},
         {o.panels.data() + 1, kN, 1, nullptr, unrounded.data(), kN});
  int64_t from_unrounded = 0, from_lower_first = 0;
  for (int64_t r = 0; r < kM; ++r) {
    for (int64_t column = 0; column < kN; ++column) {
      const float value = got[static_cast<size_t>(r * kN + column)];
      from_unrounded += value != unrounded[static_cast<size_t>(r * kN + column)];
      float acc = 0.0f;
      for (int64_t i = 0; i < kK; i += 2) {
        for (const int64_t at : {i + 1, i}) {
          acc = std::fma(o.x_rounded[static_cast<size_t>(r * kK + at)],
                         o.w_rounded[static_cast<size_t>(column * kK + at)], acc);
        }
      }
      from_lower_first += value != acc;
    }
  }
  EXPECT_GT(from_unrounded, kM * kN * 9 / 10);
  EXPECT_GT(from_lower_first, kM * kN / 4);
}

TEST_P(Bf16ModeTest, WeightGradientTakesTheRoundedRows) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {37, 71, 65}, {130, 96, 200}}) {
    const Operands o(m, n, k, 20 + static_cast<uint64_t>(m));
    const std::vector<float> dy = WideFloats(m * n, 21);
    std::vector<float> got = UniformFloats(PanelFloats(n, k), 22), wanted = got;
    Pool pool(2);
    LinearWeightGradient(pool, {o.rows(), o.ldx, m, k, Inputs::kBf16},
                         {dy.data(), n, n, got.data()});
    LinearWeightGradient(pool, {o.x_rounded.data(), k, m, k}, {dy.data(), n, n, wanted.data()});
    EXPECT_TRUE(SameBits(got.data(), wanted.data(), PanelFloats(n, k))) << m;
  }
}

TEST_P(Bf16ModeTest, HeadEqualsTheReferenceOnRoundedRowsForwardAndBackward) {
  struct Case {
    int64_t rows, vocab, hidden;
    int leaves;
  };
  for (const Case c : {Case{37, 2560, 48, 2}, Case{5, 2048, 33, 1}, Case{20, 4800, 40, 4},
                       Case{60, 1001, 64, 1}, Case{1, 70, 32, 1}}) {
    const std::vector<float> x = UniformFloats(c.rows * c.hidden, 8),
                             dlp = UniformFloats(c.rows, 9);
    const std::vector<float> w = UniformFloats(c.vocab * c.hidden, 10);
    std::vector<float> x_rounded, w_rounded;
    for (const float v : x) x_rounded.push_back(ToFloat(RoundToBf16(v)));
    for (const float v : w) w_rounded.push_back(ToFloat(RoundToBf16(v)));
    Pool pool(1 + static_cast<int>(c.rows % 3));
    std::vector<BFloat16> panels(
        static_cast<size_t>(PanelElements(Element::kBf16, c.vocab, c.hidden)));
    ASSERT_TRUE(PackPanels(pool, w.data(), c.vocab, c.hidden, panels.data()));
    const HeadShape shape = {c.vocab, c.hidden, c.leaves, 1.25f, Inputs::kBf16};
    TestRandom random(10);
    std::vector<int32_t> targets;
    for (int64_t r = 0; r < c.rows; ++r) {
      targets.push_back(static_cast<int32_t>(random.Below(c.vocab)));
    }
    const std::vector<HeadUnit> units = {{0, c.rows / 3}, {c.rows / 3, c.rows - c.rows / 3}};
    struct Run {
      std::vector<float> lp, max, sum, entropy, dhidden, gradient;
    } got, wanted;
    for (Run* run : {&got, &wanted}) {
      for (auto* v : {&run->lp, &run->max, &run->sum, &run->entropy}) *v = PoisonedFloats(c.rows);
      run->dhidden = PoisonedFloats(c.rows * c.hidden);
    }
    got.gradient.assign(static_cast<size_t>(PanelFloats(c.vocab, c.hidden)), 0.0f);
    HeadLogProb(pool, shape, x.data(), c.hidden, c.rows, panels.data(), targets.data(),
                got.lp.data(), got.max.data(), got.sum.data(), got.entropy.data());
    HeadLogProbBackward(pool, shape, x.data(), c.hidden, c.rows, panels.data(), targets.data(),
                        dlp.data(), got.max.data(), got.sum.data(), units, got.dhidden.data(),
                        c.hidden, got.gradient.data());
    wanted.gradient.assign(static_cast<size_t>(c.vocab * c.hidden), 0.0f);
    reference::HeadLogProb(shape, x_rounded.data(), c.hidden, c.rows, w_rounded.data(),
                           targets.data(), wanted.lp.data(), wanted.max.data(), wanted.sum.data(),
                           wanted.entropy.data());
    reference::HeadLogProbBackward(shape, x_rounded.data(), c.hidden, c.rows, w_rounded.data(),
                                   targets.data(), dlp.data(), wanted.max.data(), wanted.sum.data(),
                                   units, wanted.dhidden.data(), c.hidden, wanted.gradient.data());
    std::vector<float> gradient(wanted.gradient.size());
    UnpackPanels(pool, got.gradient.data(), c.vocab, c.hidden, gradient.data());
    EXPECT_TRUE(SameBits(got.lp.data(), wanted.lp.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.max.data(), wanted.max.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.sum.data(), wanted.sum.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.entropy.data(), wanted.entropy.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.dhidden.data(), wanted.dhidden.data(), c.rows * c.hidden)) << c.vocab;
    EXPECT_TRUE(SameBits(gradient.data(), wanted.gradient.data(), c.vocab * c.hidden)) << c.vocab;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Bf16ModeTest, ::testing::ValuesIn(tests::IsaNames(Inputs::kBf16)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace titan::kernels
