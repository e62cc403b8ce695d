// SPDX-License-Identifier: Apache-2.0
//
// Norm, SwiGLU, rope, embedding, optimizer and sampling: kernel = scalar twin by bits on both
// instruction sets, over random sizes and thread counts, with poisoned surroundings; values and
// gradients against double; and, for each reduction, a wrong order that must be seen.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/embedding.h"
#include "core/kernels/norm.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"
#include "core/kernels/rope.h"
#include "core/kernels/swiglu.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

using tests::CountDifferentBits;
using tests::Guarded;

void OnEveryIsa(const std::function<void(Pool&)>& body) {
  for (const Isa isa : tests::AllIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (const int threads : {1, 4}) {
      SCOPED_TRACE(testing::Message() << IsaName(isa) << " threads " << threads);
      Pool pool(threads);
      body(pool);
    }
  }
}

std::vector<RowRange> RandomUnits(int64_t rows, tests::Random& random) {
  std::vector<RowRange> units;
  for (int64_t at = 0; at < rows;) {
    const int64_t end = std::min(rows, at + random.Between(1, 40));
    units.push_back({at, end});
    at = end;
  }
  return units;
}

TEST(NormTest, EqualsScalarTwin) {
  const NumericThread numeric;
  tests::Random random(1);
  for (const auto& [rows, hidden] : {std::pair<int64_t, int64_t>{1, 1},
                                     {3, 7},
                                     {17, 64},
                                     {33, 576},
                                     {9, 1000},
                                     {65, 130},
                                     {5, 3000}}) {
    SCOPED_TRACE(testing::Message() << rows << "x" << hidden);
    Guarded x(rows * hidden, 1), gain(hidden, 2), dy(rows * hidden, 3);
    x.FillWide(1), gain.FillWide(2), dy.FillWide(3);
    Guarded out(x.size(), 4), inv(rows, 5), dx(x.size(), 6), dgain(hidden, 7);
    dgain.FillWide(9);
    const std::vector<RowRange> units = RandomUnits(rows, random);
    reference::RmsNorm(x.data(), rows, hidden, gain.data(), 1e-5f, out.data(), inv.data());
    reference::RmsNormBackward(x.data(), rows, hidden, gain.data(), inv.data(), dy.data(),
                               dx.data(), units, dgain.data());
    OnEveryIsa([&](Pool& pool) {
      Guarded out2(x.size(), 4), inv2(rows, 5), dx2(x.size(), 6), dgain2(hidden, 7);
      dgain2.FillWide(9);
      RmsNorm(pool, x.data(), rows, hidden, gain.data(), 1e-5f, out2.data(), inv2.data());
      RmsNormBackward(pool, x.data(), rows, hidden, gain.data(), inv2.data(), dy.data(), dx2.data(),
                      units, dgain2.data());
      EXPECT_EQ(CountDifferentBits(out.span(), out2.span()), 0);
      EXPECT_EQ(CountDifferentBits(inv.span(), inv2.span()), 0);
      EXPECT_EQ(CountDifferentBits(dx.span(), dx2.span()), 0);
      EXPECT_EQ(CountDifferentBits(dgain.span(), dgain2.span()), 0);
      std::memcpy(dx2.data(), dy.data(), dy.size() * sizeof(float));
      RmsNormBackward(pool, x.data(), rows, hidden, gain.data(), inv2.data(), dx2.data(),
                      dx2.data(), units, nullptr);
      EXPECT_EQ(CountDifferentBits(dx.span(), dx2.span()), 0) << "in place";
    });
  }
}

TEST(NormTest, UnitsAreSeparateChains) {
  const NumericThread numeric;
  constexpr int64_t kRows = 200, kHidden = 32;
  Guarded x(kRows * kHidden, 1), gain(kHidden, 2), dy(kRows * kHidden, 3), inv(kRows, 4),
      dx(kRows * kHidden, 5);
  x.FillWide(1), gain.FillWide(2), dy.FillWide(3);
  Pool pool(1);
  RmsNorm(pool, x.data(), kRows, kHidden, gain.data(), 1e-5f, dx.data(), inv.data());
  const auto run = [&](std::vector<RowRange> units) {
    std::vector<float> dgain(kHidden, 0.0f);
    RmsNormBackward(pool, x.data(), kRows, kHidden, gain.data(), inv.data(), dy.data(), dx.data(),
                    units, dgain.data());
    return dgain;
  };
  EXPECT_NE(CountDifferentBits(run({{0, kRows}}), run({{0, 90}, {90, kRows}})), 0);
}

TEST(NormTest, AgreesWithDoubleAndItsDerivative) {
  const NumericThread numeric;
  constexpr int64_t kHidden = 576;
  Guarded x(kHidden, 1), gain(kHidden, 2), dy(kHidden, 3), out(kHidden, 4), dx(kHidden, 5),
      dgain(kHidden, 6);
  x.FillWide(1), gain.FillWide(2), dy.FillWide(3);
  for (int64_t i = 0; i < kHidden; ++i) dgain.data()[i] = 0.0f;
  float inv = 0.0f;
  Pool pool(1);
  RmsNorm(pool, x.data(), 1, kHidden, gain.data(), 1e-5f, out.data(), &inv);
  const RowRange unit{0, 1};
  RmsNormBackward(pool, x.data(), 1, kHidden, gain.data(), &inv, dy.data(), dx.data(), {&unit, 1},
                  dgain.data());
  double ss = 0.0;
  for (int64_t i = 0; i < kHidden; ++i) ss += double{x.data()[i]} * x.data()[i];
  const double r = 1.0 / std::sqrt(ss / kHidden + 1e-5f);
  double dot = 0.0;
  for (int64_t i = 0; i < kHidden; ++i) dot += double{dy.data()[i]} * gain.data()[i] * x.data()[i];
  for (int64_t i = 0; i < kHidden; ++i) {
    const double a = double{dy.data()[i]} * gain.data()[i];
    const double want_dx = r * a - r * r * r * dot / kHidden * x.data()[i];
    EXPECT_NEAR(out.data()[i], x.data()[i] * r * gain.data()[i],
                1e-6 * (1 + std::abs(out.data()[i])));
    EXPECT_NEAR(dx.data()[i], want_dx, 2e-6 * (1 + std::abs(want_dx)));
    EXPECT_NEAR(dgain.data()[i], dy.data()[i] * x.data()[i] * r,
                1e-6 * (1 + std::abs(dgain.data()[i])));
  }
}

TEST(SwiGluTest, EqualsScalarTwinAndDouble) {
  const NumericThread numeric;
  for (const int64_t n : {1, 5, 16, 31, 1536, 40001}) {
    Guarded gate(n, 1), up(n, 2), dout(n, 3), out(n, 4), dgate(n, 5), dup(n, 6);
    gate.FillWide(1, 2.0f), up.FillWide(2), dout.FillWide(3);
    if (n > 20)
      gate.data()[0] = 100.0f, gate.data()[1] = -100.0f, gate.data()[2] = -0.0f,
      gate.data()[3] = 1e-40f;
    reference::SwiGlu(n, gate.data(), up.data(), out.data());
    reference::SwiGluBackward(n, gate.data(), up.data(), dout.data(), dgate.data(), dup.data());
    OnEveryIsa([&](Pool& pool) {
      Guarded out2(n, 4), dgate2(n, 5), dup2(n, 6), sum(n, 7);
      SwiGlu(pool, n, gate.data(), up.data(), out2.data());
      SwiGluBackward(pool, n, gate.data(), up.data(), dout.data(), dgate2.data(), dup2.data());
      EXPECT_EQ(CountDifferentBits(out.span(), out2.span()), 0);
      EXPECT_EQ(CountDifferentBits(dgate.span(), dgate2.span()), 0);
      EXPECT_EQ(CountDifferentBits(dup.span(), dup2.span()), 0);
      Add(pool, n, gate.data(), up.data(), sum.data());
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(sum.data()[i], gate.data()[i] + up.data()[i]);
      std::memcpy(sum.data(), gate.data(), n * sizeof(float));
      AddInto(pool, n, sum.data(), up.data());
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(sum.data()[i], gate.data()[i] + up.data()[i]);
    });
    for (int64_t i = 0; i < n; ++i) {
      const double g = gate.data()[i], u = up.data()[i], d = dout.data()[i],
                   s = 1.0 / (1.0 + std::exp(-g));
      const double slope = s * (1.0 + g * (1.0 - s));
      EXPECT_NEAR(out.data()[i], g * s * u, 1e-6 * (1e-3 + std::abs(g * s * u)));
      EXPECT_NEAR(dup.data()[i], g * s * d, 1e-6 * (1e-3 + std::abs(g * s * d)));
      EXPECT_NEAR(dgate.data()[i], d * u * slope, 1e-6 * (1.0 + std::abs(d * u)));
    }
  }
}

TEST(RopeTest, TableAgreesWithDouble) {
  double worst = 0.0;
  for (int64_t i = 0; i < 200000; ++i) {
    const double angle = i < 100000 ? i * 0.37 : (i - 150000) * 335.123456789;
    double s, c;
    DSinCos(angle, &s, &c);
    worst = std::max({worst, std::abs(s - std::sin(angle)), std::abs(c - std::cos(angle))});
  }
  EXPECT_LT(worst, 1e-15);
  for (const double base : {10000.0, 500000.0, 1e7, 1.5}) {
    for (double e = 0.0; e < 1.0; e += 0.0137) {
      EXPECT_NEAR(DPow(base, e) / std::pow(base, e), 1.0, 4e-15) << base << " " << e;
    }
  }
  const StatusOr<RopeTable> table = RopeTable::Create(64, 100000.0, {}, 300);
  ASSERT_TRUE(table.ok());
  for (int i = 0; i < 32; ++i) {
    EXPECT_NEAR(table->inv_freq()[i], std::pow(100000.0, -i / 32.0), 1.2e-7 * table->inv_freq()[i]);
    EXPECT_EQ(table->cosines(299)[i], static_cast<float>(std::cos(299.0 * table->inv_freq()[i])));
    EXPECT_EQ(table->sines(299)[i], static_cast<float>(std::sin(299.0 * table->inv_freq()[i])));
  }
}

TEST(RopeTest, Llama3ScalingHasItsThreeBands) {
  RopeScaling scaling{RopeScaling::Kind::kLlama3, 8.0, 1.0, 4.0, 64.0};
  const StatusOr<RopeTable> plain = RopeTable::Create(16, 10000.0, {}, 1);
  const StatusOr<RopeTable> scaled = RopeTable::Create(16, 10000.0, scaling, 1);
  ASSERT_TRUE(plain.ok() && scaled.ok());
  int kept = 0, divided = 0, between = 0;
  for (int i = 0; i < 8; ++i) {
    const double f = plain->inv_freq()[i], g = scaled->inv_freq()[i], wavelength = 2.0 * M_PI / f;
    if (wavelength < 16.0) {
      ++kept;
      EXPECT_EQ(g, f);
    } else if (wavelength > 64.0) {
      ++divided;
      EXPECT_EQ(static_cast<float>(g), static_cast<float>(f / 8.0));
    } else {
      const double t = (64.0 / wavelength - 1.0) / 3.0;
      ++between;
      EXPECT_NEAR(g, (1.0 - t) * f / 8.0 + t * f, 1e-7 * f);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(between, 0);
}

TEST(RopeTest, BadArgumentsAreRefused) {
  EXPECT_EQ(RopeTable::Create(7, 10000.0, {}, 10).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::Create(8, 0.5, {}, 10).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::Create(8, 1e300, {}, 10).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::Create(8, 10000.0, {}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::Create(8, 10000.0, {RopeScaling::Kind::kLinear, 0.5}, 9).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::Create(8, 10000.0, {RopeScaling::Kind::kLlama3, 8.0, 4.0, 4.0, 64.0}, 9)
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

TEST(RopeTest, RotationEqualsScalarTwinAndBackwardUndoesIt) {
  const NumericThread numeric;
  for (const int head_dim : {2, 6, 32, 64, 90}) {
    const StatusOr<RopeTable> table = RopeTable::Create(head_dim, 10000.0, {}, 500);
    ASSERT_TRUE(table.ok());
    constexpr int kHeads = 3;
    constexpr int64_t kRows = 21;
    const int64_t ld = kHeads * head_dim + 5;
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < kRows; ++t) positions.push_back(static_cast<int32_t>((t * 97) % 500));
    Guarded x(kRows * ld, 1), y(kRows * ld, 1), z(kRows * ld, 1);
    x.FillWide(1), y.FillWide(1), z.FillWide(1);
    reference::ApplyRope(*table, y.data(), ld, kRows, kHeads, positions.data());
    reference::ApplyRopeBackward(*table, z.data(), ld, kRows, kHeads, positions.data());
    OnEveryIsa([&](Pool& pool) {
      Guarded y2(x.size(), 1), z2(x.size(), 1);
      y2.FillWide(1), z2.FillWide(1);
      ApplyRope(pool, *table, y2.data(), ld, kRows, kHeads, positions.data());
      ApplyRopeBackward(pool, *table, z2.data(), ld, kRows, kHeads, positions.data());
      EXPECT_EQ(CountDifferentBits(y.span(), y2.span()), 0);
      EXPECT_EQ(CountDifferentBits(z.span(), z2.span()), 0);
      ApplyRopeBackward(pool, *table, y2.data(), ld, kRows, kHeads, positions.data());
      for (int64_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y2.data()[i], x.data()[i], 4e-6);
    });
  }
}

TEST(EmbeddingTest, GatherAndGradientInBothLayouts) {
  const NumericThread numeric;
  constexpr int64_t kVocab = 77, kRows = 300;
  for (const int64_t hidden : {1, 33, 130}) {
    tests::Random random(hidden);
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < kRows; ++t)
      tokens.push_back(static_cast<int32_t>(random.Between(0, t % 2 ? 5 : kVocab - 1)));
    const std::vector<RowRange> units = RandomUnits(kRows, random);
    Guarded rows(kVocab * hidden, 1), dy(kRows * hidden, 2);
    rows.FillWide(1), dy.FillWide(2);
    Guarded panels(PanelFloats(kVocab, hidden), 3), want(kVocab * hidden, 4);
    want.FillWide(4);
    reference::EmbeddingGradient(TableLayout::kRows, dy.data(), kVocab, hidden, tokens.data(),
                                 units, want.data());
    OnEveryIsa([&](Pool& pool) {
      PackPanels(pool, rows.data(), kVocab, hidden, panels.data());
      Guarded a(kRows * hidden, 5), b(kRows * hidden, 6);
      EmbeddingGather(pool, TableLayout::kRows, rows.data(), kVocab, hidden, tokens.data(), kRows,
                      a.data());
      EmbeddingGather(pool, TableLayout::kPanels32, panels.data(), kVocab, hidden, tokens.data(),
                      kRows, b.data());
      EXPECT_EQ(CountDifferentBits(a.span(), b.span()), 0);
      EXPECT_EQ(std::memcmp(a.data() + 7 * hidden, rows.data() + tokens[7] * hidden,
                            hidden * sizeof(float)),
                0);
      Guarded got(kVocab * hidden, 4), got_rows(kVocab * hidden, 7), got_panels(panels.size(), 8);
      got.FillWide(4);
      PackPanels(pool, got.data(), kVocab, hidden, got_panels.data());
      EmbeddingGradient(pool, TableLayout::kRows, dy.data(), kVocab, hidden, tokens.data(), units,
                        got.data());
      EmbeddingGradient(pool, TableLayout::kPanels32, dy.data(), kVocab, hidden, tokens.data(),
                        units, got_panels.data());
      UnpackPanels(pool, got_panels.data(), kVocab, hidden, got_rows.data());
      EXPECT_EQ(CountDifferentBits(got.span(), want.span()), 0);
      EXPECT_EQ(CountDifferentBits(got_rows.span(), want.span()), 0);
      Guarded other(kVocab * hidden, 4);
      other.FillWide(4);
      const RowRange whole{0, kRows};
      EmbeddingGradient(pool, TableLayout::kRows, dy.data(), kVocab, hidden, tokens.data(),
                        {&whole, 1}, other.data());
      EXPECT_NE(CountDifferentBits(other.span(), want.span()), 0)
          << "one chain must differ from units";
    });
  }
}

TEST(OptimizerTest, SquareSumReadsTheLogicalTensorInAnyLayout) {
  const NumericThread numeric;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1},
                             {5, 9},
                             {32, 64},
                             {33, 576},
                             {100, 1000},
                             {1, 5000},
                             {700, 150}}) {
    SCOPED_TRACE(testing::Message() << n << "x" << k);
    Guarded rows(n * k, 1), panels(PanelFloats(n, k), 2);
    rows.FillWide(1, 1e10f);
    const GradientTensor by_rows{rows.data(), TableLayout::kRows, n, k};
    const GradientTensor by_panels{panels.data(), TableLayout::kPanels32, n, k};
    const double want = reference::GradientSquareSum(by_rows);
    double exact = 0.0;
    for (int64_t i = 0; i < n * k; ++i) exact += double{rows.data()[i]} * rows.data()[i];
    EXPECT_NEAR(want / exact, 1.0, 1e-12);
    OnEveryIsa([&](Pool& pool) {
      PackPanels(pool, rows.data(), n, k, panels.data());
      EXPECT_EQ(GradientSquareSum(pool, by_rows), want);
      EXPECT_EQ(GradientSquareSum(pool, by_panels), want);
    });
    if (n * k > 2000) {
      EXPECT_NE(exact, want) << "a plain ascending sum must differ";
    }
  }
}

TEST(OptimizerTest, AdamWEqualsScalarTwinAndReportsOverflow) {
  const NumericThread numeric;
  AdamWPowers powers;
  const AdamWConfig config{1e-3, 0.9, 0.98, 1e-8, 0.1};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(NextAdamWStep(config, &powers).ok());
  const StatusOr<AdamWScalars> scalars = NextAdamWStep(config, &powers);
  ASSERT_TRUE(scalars.ok());
  EXPECT_EQ(powers.step, 4);
  EXPECT_EQ(powers.beta1_power, 0.9 * 0.9 * 0.9 * 0.9);
  for (const int64_t n : {1, 15, 33, 50000}) {
    Guarded g(n, 1), p(n, 2), m(n, 3), v(n, 4);
    const auto fill = [&](Guarded& p2, Guarded& m2, Guarded& v2) {
      p2.FillWide(2), m2.FillWide(3), v2.FillWide(4);
      for (int64_t i = 0; i < n; ++i) v2.data()[i] = std::abs(v2.data()[i]);
    };
    g.FillWide(1), fill(p, m, v);
    EXPECT_TRUE(reference::AdamWStep(n, *scalars, 0.3f, g.data(), p.data(), m.data(), v.data()));
    OnEveryIsa([&](Pool& pool) {
      Guarded p2(n, 2), m2(n, 3), v2(n, 4);
      fill(p2, m2, v2);
      EXPECT_TRUE(AdamWStep(pool, n, *scalars, 0.3f, g.data(), p2.data(), m2.data(), v2.data()));
      EXPECT_EQ(CountDifferentBits(p.span(), p2.span()), 0);
      EXPECT_EQ(CountDifferentBits(m.span(), m2.span()), 0);
      EXPECT_EQ(CountDifferentBits(v.span(), v2.span()), 0);
      for (const float bad : {3e30f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
        const float good = g.data()[n / 2];
        g.data()[n / 2] = bad;
        EXPECT_FALSE(AdamWStep(pool, n, *scalars, 1.0f, g.data(), p2.data(), m2.data(), v2.data()))
            << bad;
        g.data()[n / 2] = good;
        fill(p2, m2, v2);
      }
    });
  }
}

TEST(OptimizerTest, BadHyperparametersAndNormsAreRefused) {
  AdamWPowers powers;
  for (const AdamWConfig& bad :
       {AdamWConfig{-1.0}, AdamWConfig{1e-3, 1.0}, AdamWConfig{1e-3, 0.9, -0.1},
        AdamWConfig{1e-3, 0.9, 0.99, 0.0}, AdamWConfig{1e-3, 0.9, 0.99, 1e-8, -1.0},
        AdamWConfig{std::nan("")}, AdamWConfig{1.0, 0.9, 0.99, 1e-8, 2.0}}) {
    EXPECT_EQ(NextAdamWStep(bad, &powers).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(powers.step, 0);
  for (const double bad : {0.0, -1.0, 1e-320, std::nan(""), HUGE_VAL}) {
    EXPECT_EQ(ClipScale(1.0, bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  for (const double bad : {std::nan(""), HUGE_VAL, -1.0, 1e39}) {
    EXPECT_EQ(ClipScale(bad, 1.0).status().code(), StatusCode::kFailedPrecondition) << bad;
  }
  EXPECT_EQ(*ClipScale(0.0, 1.0), 1.0f);
  EXPECT_EQ(*ClipScale(5.0, 1.0), static_cast<float>(1.0 / (5.0 + 1e-6)));
}

}  // namespace
}  // namespace titan::kernels
