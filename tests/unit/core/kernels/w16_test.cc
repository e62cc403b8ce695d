// SPDX-License-Identifier: Apache-2.0
//
// Mode W16: rounding to bfloat16 is round to nearest even by a definition of its own; the bfloat16
// layout holds every element at its index; and linear, head and embedding on bfloat16 weights have
// the bits of the f32 kernels, and of the scalar reference, on the upconverted weights.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/kernels/bf16.h"
#include "core/kernels/embedding.h"
#include "core/kernels/head.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"
#include "core/kernels/reference_head.h"
#include "core/kernels/reference_linear.h"
#include "tests/support/kernel_data.h"

namespace titan::kernels {
namespace {

using titan::testing::IsPoison;
using titan::testing::PoisonedFloats;
using titan::testing::SameBits;
using titan::testing::TestRandom;
using titan::testing::UniformFloats;
using titan::testing::WideFloats;

constexpr BFloat16 kPoisonBf16{0x7fa5};

// The nearest bfloat16 by distance, in double: of the two neighbours the nearer one, of a tie the
// one whose last bit is 0; what follows the largest one counts as 2^128 and means infinity.
BFloat16 NearestByDistance(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  if (std::isnan(x)) return {0x7fc0};
  if (std::isinf(x)) return {static_cast<uint16_t>(sign | 0x7f80u)};
  if (std::fpclassify(x) == FP_SUBNORMAL || x == 0.0f) return {sign};
  const uint32_t below = bits >> 16 & 0x7fffu;
  const auto value = [](uint32_t magnitude) {
    return magnitude == 0x7f80u ? std::ldexp(1.0, 128)
                                : static_cast<double>(std::bit_cast<float>(magnitude << 16));
  };
  const double exact = std::fabs(static_cast<double>(x));
  const double down = exact - value(below), up = value(below + 1) - exact;
  const uint32_t nearest = down < up ? below : up < down ? below + 1 : below + below % 2;
  return {static_cast<uint16_t>(sign | nearest)};
}

TEST(Bf16Test, RoundsToTheNearestTiesToEvenWithDenormalsFlushed) {
  TestRandom random(1);
  for (uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu,
                                 static_cast<uint32_t>(random.Below(0x10000))}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      ASSERT_EQ(RoundToBf16(x).bits, NearestByDistance(x).bits)
          << std::hex << upper << " " << lower;
    }
  }
}

TEST(Bf16Test, NamedCases) {
  const auto bits = [](float x) { return RoundToBf16(x).bits; };
  EXPECT_EQ(bits(1.0f), 0x3f80);
  EXPECT_EQ(bits(0x1.01p0f), 0x3f80);      // a tie: down to the even one
  EXPECT_EQ(bits(0x1.03p0f), 0x3f82);      // a tie: up to the even one
  EXPECT_EQ(bits(0x1.010002p0f), 0x3f81);  // just above a tie
  EXPECT_EQ(bits(-0x1.02p0f), 0xbf81);     // exact
  EXPECT_EQ(bits(-0.0f), 0x8000);
  EXPECT_EQ(bits(0x1.fffffcp-127f), 0x0000);  // denormal, although it is nearest to 2^-126
  EXPECT_EQ(bits(-0x1p-149f), 0x8000);
  EXPECT_EQ(bits(0x1p-126f), 0x0080);
  EXPECT_EQ(bits(0x1.fefffep127f), 0x7f7f);
  EXPECT_EQ(bits(0x1.ffp127f), 0x7f80);  // the middle between the largest one and 2^128
  EXPECT_EQ(bits(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(bits(std::bit_cast<float>(0xff800001u)), 0x7fc0);
  EXPECT_EQ(bits(std::bit_cast<float>(0x7fffffffu)), 0x7fc0);
}

TEST(Bf16Test, UpconversionIsExactAndRoundingUndoesIt) {
  for (uint32_t i = 0; i < 0x10000u; ++i) {
    const BFloat16 x{static_cast<uint16_t>(i)};
    const float wide = ToFloat(x);
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), i << 16);
    if (std::fpclassify(wide) == FP_SUBNORMAL) {
      ASSERT_EQ(RoundToBf16(wide).bits, i & 0x8000u);
    } else if (!std::isnan(wide)) {
      ASSERT_EQ(RoundToBf16(wide), x);
    }
  }
}

// W[n][k] as floats, its bfloat16 panels at an odd place between poison, and what those hold.
struct Weight {
  Weight(int64_t n, int64_t k, uint64_t seed, bool uniform = false) : n(n), k(k) {
    rows = uniform ? UniformFloats(n * k, seed) : WideFloats(n * k, seed);
    for (const float x : rows) rounded.push_back(ToFloat(RoundToBf16(x)));
    const auto elements = static_cast<size_t>(PanelElements(Element::kBf16, n, k));
    storage.assign(elements + 2, kPoisonBf16);
    Pool pool(2);
    EXPECT_TRUE(PackPanels(pool, rows.data(), n, k, storage.data() + 1));
    EXPECT_TRUE(storage.front() == kPoisonBf16 && storage.back() == kPoisonBf16);
    f32.resize(static_cast<size_t>(PanelFloats(n, k)));
    PackPanels(pool, rounded.data(), n, k, f32.data());
  }
  const BFloat16* panels() const { return storage.data() + 1; }

  int64_t n, k;
  std::vector<float> rows, rounded, f32;  // as given; upconverted; upconverted in panels32
  std::vector<BFloat16> storage;
};

struct Size {
  int64_t n, k;
};
constexpr Size kSizes[] = {{1, 1}, {31, 7}, {32, 32}, {33, 65}, {96, 64}, {71, 130}, {200, 3}};

TEST(Bf16PanelsTest, EveryElementIsAtItsIndexAndPadsAreAsDefined) {
  for (const auto [n, k] : kSizes) {
    const Weight w(n, k, 1);
    for (int64_t row = 0; row < PanelCount(n) * kPanelColumns; ++row) {
      for (int64_t i = 0; i < k + k % 2; ++i) {
        const uint16_t wanted = i == k ? 0x8000
                                : row < n
                                    ? RoundToBf16(w.rows[static_cast<size_t>(row * k + i)]).bits
                                    : 0;
        ASSERT_EQ(w.panels()[Bf16PanelIndex(k, row, i)].bits, wanted) << row << " " << i;
      }
    }
    // The even k is the upper half of a 32-bit word.
    EXPECT_EQ(Bf16PanelIndex(k, 0, 0), 1);
    EXPECT_EQ(Bf16PanelIndex(k, 0, 1), 0);
  }
}

TEST(Bf16PanelsTest, ConversionsMoveBits) {
  for (const auto [n, k] : kSizes) {
    const Weight w(n, k, 2);
    Pool pool(3);
    std::vector<float> back = PoisonedFloats(n * k + 1), row(static_cast<size_t>(k));
    UnpackPanels(pool, w.panels(), n, k, back.data());
    EXPECT_TRUE(SameBits(back.data(), w.rounded.data(), n * k));
    EXPECT_TRUE(IsPoison(back.back()));
    for (int64_t r = 0; r < n; ++r) {
      GatherRow(w.panels(), n, k, r, row.data());
      EXPECT_TRUE(SameBits(row.data(), w.rounded.data() + r * k, k));
    }
    std::vector<float> got = PoisonedFloats(PanelFloats(k, n) + 1), wanted(got.size() - 1);
    TransposePanels(pool, w.panels(), n, k, got.data());
    TransposePanels(pool, w.f32.data(), n, k, wanted.data());
    EXPECT_TRUE(SameBits(got.data(), wanted.data(), PanelFloats(k, n))) << n << " " << k;
    EXPECT_TRUE(IsPoison(got.back()));
    // From f32 panels, as a trainer publishes: the bytes of packing the rows.
    std::vector<float> panels(static_cast<size_t>(PanelFloats(n, k)));
    PackPanels(pool, w.rows.data(), n, k, panels.data());
    std::vector<BFloat16> rounded(w.storage.size(), kPoisonBf16);
    EXPECT_TRUE(RoundPanels(pool, panels.data(), n, k, rounded.data() + 1));
    EXPECT_EQ(rounded, w.storage);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 0x1.ffp127f,
                            -std::numeric_limits<float>::infinity()}) {
      std::vector<float> rows = w.rows;
      rows[static_cast<size_t>(n * k / 2)] = bad;
      EXPECT_FALSE(PackPanels(pool, rows.data(), n, k, rounded.data() + 1));
      PackPanels(pool, rows.data(), n, k, panels.data());
      EXPECT_FALSE(RoundPanels(pool, panels.data(), n, k, rounded.data() + 1));
    }
  }
}

std::vector<Isa> Isas() {
  std::vector<Isa> isas = {Isa::kAvx2};
  if (*DetectIsa() == Isa::kAvx512) isas.push_back(Isa::kAvx512);
  return isas;
}

class W16Test : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa("auto").ok()); }

  // Runs Linear on the bfloat16 panels into poison and compares with F32 and with the reference.
  void CheckLinear(int64_t m, int64_t n, int64_t k, int leaves, bool with_bias, int threads,
                   uint64_t seed) {
    const Weight w(n, k, seed);
    const int64_t ldx = k + 3, ldo = n + 5;
    const std::vector<float> x = WideFloats(m * ldx + 1, seed + 1), bias = WideFloats(n, seed + 2);
    const float* b = with_bias ? bias.data() : nullptr;
    std::vector<float> got = PoisonedFloats(m * ldo + 1), f32 = got;
    std::vector<float> wanted(static_cast<size_t>(m * n));
    Pool pool(threads);
    Linear(pool, {x.data() + 1, ldx, m, k}, {w.panels(), n, leaves, b, got.data() + 1, ldo});
    Linear(pool, {x.data() + 1, ldx, m, k}, {w.f32.data(), n, leaves, b, f32.data() + 1, ldo});
    reference::Linear(x.data() + 1, ldx, m, w.rounded.data(), n, k, leaves, b, wanted.data(), n);
    const std::string where = "m " + std::to_string(m) + " n " + std::to_string(n) + " k " +
                              std::to_string(k) + " leaves " + std::to_string(leaves);
    EXPECT_TRUE(SameBits(got.data(), f32.data(), m * ldo + 1)) << where;  // gaps stay poison
    for (int64_t r = 0; r < m; ++r) {
      EXPECT_TRUE(SameBits(got.data() + 1 + r * ldo, wanted.data() + r * n, n)) << where;
    }
  }

  NumericThread environment_;
};

TEST_P(W16Test, LinearEqualsF32OnTheUpconvertedWeightsForEveryNumberOfRows) {
  std::vector<int64_t> row_counts = {31, 32, 33, 63, 64, 65, 127, 128, 129, 1000};
  for (int64_t m = 1; m <= 30; ++m) row_counts.push_back(m);
  for (const int64_t m : row_counts) {
    CheckLinear(m, 71, 136, 4, true, 2, 100 + static_cast<uint64_t>(m));
  }
}

TEST_P(W16Test, LinearEqualsF32ForFewRowsOfManyPanels) {
  for (int64_t m = 1; m <= 6; ++m) {
    for (const int leaves : {1, 2, 4, 8}) {
      CheckLinear(m, 288 + m % 3 * 20, leaves == 1 ? 33 : leaves * 18, leaves, true,
                  1 + static_cast<int>(m % 3), 300 + static_cast<uint64_t>(m));
    }
  }
}

TEST_P(W16Test, LinearEqualsF32ForOddSizesEveryLeafCountAndThreadCount) {
  TestRandom random(7);
  for (int round = 0; round < 64; ++round) {
    const int leaves = 1 << (round % 4);
    const int64_t m = 1 + random.Below(40), n = 1 + random.Below(150);
    const int64_t k = leaves == 1 ? 1 + random.Below(400) : leaves * 2 * (1 + random.Below(30));
    CheckLinear(m, n, k, leaves, round % 2 == 0, 1 + round % 4,
                1000 + static_cast<uint64_t>(round));
  }
}

// Calls with weights of one type and of the other share a thread's packed rows' memory, not the
// rows.
TEST_P(W16Test, CallsOfBothTypesTakeTheirOwnRows) {
  constexpr int64_t kM = 3, kN = 40, kK = 16;
  const Weight w(kN, kK, 77);
  Pool pool(1);
  std::vector<float> got(kM * kN), wanted(kM * kN);
  for (int round = 0; round < 60'000; ++round) {
    // Two of one for each of the other, then the other way round: whatever ran before, the numbers
    // of calls of each type meet.
    const bool half = round < 20'000 ? round % 3 != 0 : round % 3 == 0;
    const std::vector<float> x = WideFloats(kM * kK, 5000 + static_cast<uint64_t>(round));
    const ConstPanels panels = half ? ConstPanels(w.panels()) : ConstPanels(w.f32.data());
    Linear(pool, {x.data(), kK, kM, kK}, {panels, kN, 2, nullptr, got.data(), kN});
    reference::Linear(x.data(), kK, kM, w.rounded.data(), kN, kK, 2, nullptr, wanted.data(), kN);
    ASSERT_TRUE(SameBits(got.data(), wanted.data(), kM * kN)) << "round " << round;
  }
}

// Beyond the length up to which a chain is run in one go, parts of it are parked in memory.
TEST_P(W16Test, LinearEqualsF32ForLongChains) {
  for (const int64_t m : {3, 29, 150}) {
    CheckLinear(m, 37, 2501, 1, true, 1, 50 + static_cast<uint64_t>(m));
    CheckLinear(m, 37, 8 * 1282, 8, true, 3, 60 + static_cast<uint64_t>(m));
  }
}

// Vacuity guard: without the rounding, or with the halves of the words the other way round, most
// bits differ.
TEST_P(W16Test, OtherWeightsOrHalvesDiffer) {
  constexpr int64_t kM = 20, kN = 64, kK = 96;
  const Weight w(kN, kK, 3);
  const std::vector<float> x = WideFloats(kM * kK, 4);
  std::vector<BFloat16> swapped(w.storage.begin() + 1, w.storage.end() - 1);
  for (size_t i = 0; i < swapped.size(); i += 2) std::swap(swapped[i], swapped[i + 1]);
  std::vector<float> rows(static_cast<size_t>(PanelFloats(kN, kK)));
  std::vector<float> got(kM * kN), unrounded(kM * kN), other(kM * kN);
  Pool pool(2);
  PackPanels(pool, w.rows.data(), kN, kK, rows.data());
  Linear(pool, {x.data(), kK, kM, kK}, {w.panels(), kN, 2, nullptr, got.data(), kN});
  Linear(pool, {x.data(), kK, kM, kK}, {rows.data(), kN, 2, nullptr, unrounded.data(), kN});
  Linear(pool, {x.data(), kK, kM, kK}, {swapped.data(), kN, 2, nullptr, other.data(), kN});
  int64_t from_unrounded = 0, from_swapped = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    from_unrounded += got[i] != unrounded[i];
    from_swapped += got[i] != other[i];
  }
  EXPECT_GT(from_unrounded, kM * kN * 9 / 10);
  EXPECT_GT(from_swapped, kM * kN * 9 / 10);
}

TEST_P(W16Test, HeadEqualsF32AndTheReferenceForwardAndBackward) {
  struct Case {
    int64_t rows, vocab, hidden;
    int leaves;
  };
  for (const Case c : {Case{37, 2560, 48, 2}, Case{5, 2048, 33, 1}, Case{20, 4800, 40, 4},
                       Case{60, 1001, 64, 1}, Case{1, 70, 32, 1}}) {
    const Weight w(c.vocab, c.hidden, static_cast<uint64_t>(c.vocab), /*uniform=*/true);
    const HeadShape shape = {c.vocab, c.hidden, c.leaves, 1.25f};
    const std::vector<float> x = UniformFloats(c.rows * c.hidden, 8);
    const std::vector<float> dlp = UniformFloats(c.rows, 9);
    TestRandom random(10);
    std::vector<int32_t> targets;
    for (int64_t r = 0; r < c.rows; ++r) {
      targets.push_back(static_cast<int32_t>(random.Below(c.vocab)));
    }
    Pool pool(1 + static_cast<int>(c.rows % 3));
    const std::vector<HeadUnit> units = {{0, c.rows / 3}, {c.rows / 3, c.rows - c.rows / 3}};
    struct Run {
      std::vector<float> lp, max, sum, entropy, dhidden, gradient;
    };
    const auto run = [&](ConstPanels panels) {
      Run r;
      for (auto* v : {&r.lp, &r.max, &r.sum, &r.entropy}) *v = PoisonedFloats(c.rows);
      r.dhidden = PoisonedFloats(c.rows * c.hidden);
      r.gradient = UniformFloats(PanelFloats(c.vocab, c.hidden), 11);
      HeadLogProb(pool, shape, x.data(), c.hidden, c.rows, panels, targets.data(), r.lp.data(),
                  r.max.data(), r.sum.data(), r.entropy.data());
      HeadLogProbBackward(pool, shape, x.data(), c.hidden, c.rows, panels, targets.data(),
                          dlp.data(), r.max.data(), r.sum.data(), units, r.dhidden.data(), c.hidden,
                          r.gradient.data());
      return r;
    };
    const Run got = run(w.panels()), f32 = run(w.f32.data());
    EXPECT_TRUE(SameBits(got.lp.data(), f32.lp.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.max.data(), f32.max.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.sum.data(), f32.sum.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.entropy.data(), f32.entropy.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.dhidden.data(), f32.dhidden.data(), c.rows * c.hidden)) << c.vocab;
    EXPECT_TRUE(SameBits(got.gradient.data(), f32.gradient.data(), PanelFloats(c.vocab, c.hidden)))
        << c.vocab;
    std::vector<float> lp(static_cast<size_t>(c.rows)), max(lp), sum(lp), entropy(lp);
    std::vector<float> dhidden(static_cast<size_t>(c.rows * c.hidden));
    reference::HeadLogProb(shape, x.data(), c.hidden, c.rows, w.rounded.data(), targets.data(),
                           lp.data(), max.data(), sum.data(), entropy.data());
    reference::HeadLogProbBackward(shape, x.data(), c.hidden, c.rows, w.rounded.data(),
                                   targets.data(), dlp.data(), max.data(), sum.data(), units,
                                   dhidden.data(), c.hidden, nullptr);
    EXPECT_TRUE(SameBits(got.lp.data(), lp.data(), c.rows)) << c.vocab;
    EXPECT_TRUE(SameBits(got.dhidden.data(), dhidden.data(), c.rows * c.hidden)) << c.vocab;
  }
}

TEST_P(W16Test, EmbeddingRowsAreTheUpconvertedRows) {
  const Weight w(75, 33, 5);
  const std::vector<int32_t> tokens = {74, 0, 3, 3, 31, 32, 74};
  std::vector<float> out(tokens.size() * 33);
  Pool pool(2);
  EmbeddingGather(pool, w.panels(), 75, 33, tokens.data(), static_cast<int64_t>(tokens.size()),
                  out.data());
  for (size_t t = 0; t < tokens.size(); ++t) {
    EXPECT_TRUE(SameBits(out.data() + t * 33, w.rounded.data() + tokens[t] * 33, 33));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, W16Test, ::testing::ValuesIn(Isas()),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

}  // namespace
}  // namespace titan::kernels
