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
#include "core/kernels/softplus.h"
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

constexpr NormShape kNormShapes[] = {{},
                                     {.heads = 3},
                                     {.kind = NormKind::kCentredGain},
                                     {.kind = NormKind::kCentredGain, .heads = 2},
                                     {.kind = NormKind::kPlain, .heads = 2},
                                     {.kind = NormKind::kGainFirst}};

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
    for (const NormShape& shape : kNormShapes) {
      SCOPED_TRACE(testing::Message() << rows << "x" << shape.heads << "x" << hidden << " kind "
                                      << static_cast<int>(shape.kind));
      const int64_t vectors = rows * shape.heads;
      Guarded x(vectors * hidden, 1), gain(hidden, 2), dy(vectors * hidden, 3);
      x.FillWide(1), gain.FillWide(2), dy.FillWide(3);
      Guarded out(x.size(), 4), inv(vectors, 5), dx(x.size(), 6), dgain(hidden, 7);
      dgain.FillWide(9);
      const std::vector<RowRange> units = RandomUnits(rows, random);
      const bool plain = shape.kind == NormKind::kPlain;
      const float* gain_or_null = plain ? nullptr : gain.data();
      reference::RmsNorm(x.data(), rows, hidden, gain_or_null, 1e-5f, out.data(), inv.data(),
                         shape);
      reference::RmsNormBackward(x.data(), rows, hidden, gain_or_null, inv.data(), dy.data(),
                                 dx.data(), units, plain ? nullptr : dgain.data(), shape);
      OnEveryIsa([&](Pool& pool) {
        Guarded out2(x.size(), 4), inv2(vectors, 5), dx2(x.size(), 6), dgain2(hidden, 7);
        dgain2.FillWide(9);
        RmsNorm(pool, x.data(), rows, hidden, gain_or_null, 1e-5f, out2.data(), inv2.data(), shape);
        RmsNormBackward(pool, x.data(), rows, hidden, gain_or_null, inv2.data(), dy.data(),
                        dx2.data(), units, plain ? nullptr : dgain2.data(), shape);
        EXPECT_EQ(CountDifferentBits(out.span(), out2.span()), 0);
        EXPECT_EQ(CountDifferentBits(inv.span(), inv2.span()), 0);
        EXPECT_EQ(CountDifferentBits(dx.span(), dx2.span()), 0);
        EXPECT_EQ(CountDifferentBits(dgain.span(), dgain2.span()), 0);
        std::memcpy(dx2.data(), dy.data(), dy.size() * sizeof(float));
        RmsNormBackward(pool, x.data(), rows, hidden, gain_or_null, inv2.data(), dx2.data(),
                        dx2.data(), units, nullptr, shape);
        EXPECT_EQ(CountDifferentBits(dx.span(), dx2.span()), 0) << "in place";
        std::memcpy(out2.data(), x.data(), x.size() * sizeof(float));
        RmsNorm(pool, out2.data(), rows, hidden, gain_or_null, 1e-5f, out2.data(), nullptr, shape);
        EXPECT_EQ(CountDifferentBits(out.span(), out2.span()), 0) << "forward in place";
      });
    }
  }
}

// The gain of a norm of heads: one chain a head. One chain over all vectors is another order.
TEST(NormTest, HeadsAreSeparateChains) {
  const NumericThread numeric;
  constexpr int64_t kRows = 100, kHeads = 4, kWidth = 32;
  Guarded x(kRows * kHeads * kWidth, 1), gain(kWidth, 2), dy(x.size(), 3), inv(kRows * kHeads, 4),
      dx(x.size(), 5);
  x.FillWide(1), gain.FillWide(2), dy.FillWide(3);
  Pool pool(1);
  RmsNorm(pool, x.data(), kRows, kWidth, gain.data(), 1e-5f, dx.data(), inv.data(),
          {.heads = kHeads});
  std::vector<float> by_head(kWidth, 0.0f), in_one(kWidth, 0.0f);
  const RowRange tokens = {0, kRows}, vectors = {0, kRows * kHeads};
  RmsNormBackward(pool, x.data(), kRows, kWidth, gain.data(), inv.data(), dy.data(), dx.data(),
                  {&tokens, 1}, by_head.data(), {.heads = kHeads});
  RmsNormBackward(pool, x.data(), kRows * kHeads, kWidth, gain.data(), inv.data(), dy.data(),
                  dx.data(), {&vectors, 1}, in_one.data());
  EXPECT_NE(CountDifferentBits(by_head, in_one), 0);
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

// The norm of a vector in double, by its definition.
std::vector<double> NormInDouble(const NormShape& shape, const std::vector<double>& x,
                                 const std::vector<double>& gain) {
  const double one = shape.kind == NormKind::kGain ? 0 : 1;
  std::vector<double> v = x, out;
  double ss = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (shape.kind == NormKind::kGainFirst) v[i] *= one + gain[i];
    ss += v[i] * v[i];
  }
  const double r = 1 / std::sqrt(ss / static_cast<double>(x.size()) + 1e-5f);
  for (size_t i = 0; i < x.size(); ++i) {
    const bool last = shape.kind == NormKind::kGain || shape.kind == NormKind::kCentredGain;
    out.push_back(v[i] * r * (last ? one + gain[i] : 1));
  }
  return out;
}

TEST(NormTest, AgreesWithDoubleAndItsDerivative) {
  const NumericThread numeric;
  constexpr int64_t kWidth = 576;
  for (const NormShape& shape : kNormShapes) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(shape.kind));
    Guarded x(kWidth, 1), gain(kWidth, 2), dy(kWidth, 3), out(kWidth, 4), dx(kWidth, 5),
        dgain(kWidth, 6);
    x.FillWide(1), gain.FillWide(2), dy.FillWide(3);
    for (int64_t i = 0; i < kWidth; ++i) dgain.data()[i] = 0.0f;
    float inv = 0.0f;
    Pool pool(1);
    const NormShape one_head = {.kind = shape.kind};
    RmsNorm(pool, x.data(), 1, kWidth, gain.data(), 1e-5f, out.data(), &inv, one_head);
    const RowRange unit{0, 1};
    const bool plain = shape.kind == NormKind::kPlain;
    RmsNormBackward(pool, x.data(), 1, kWidth, gain.data(), &inv, dy.data(), dx.data(), {&unit, 1},
                    plain ? nullptr : dgain.data(), one_head);
    std::vector<double> xs(x.data(), x.data() + kWidth), gains(gain.data(), gain.data() + kWidth);
    const std::vector<double> want = NormInDouble(shape, xs, gains);
    const auto loss = [&] {
      double sum = 0;
      const std::vector<double> y = NormInDouble(shape, xs, gains);
      for (int64_t i = 0; i < kWidth; ++i) sum += dy.data()[i] * y[static_cast<size_t>(i)];
      return sum;
    };
    const auto derivative = [&](double& at) {
      const double before = at, step = 1e-5;
      at = before + step;
      const double up = loss();
      at = before - step;
      const double down = loss();
      at = before;
      return (up - down) / (2 * step);
    };
    for (int64_t i = 0; i < kWidth; ++i) {
      const size_t j = static_cast<size_t>(i);
      EXPECT_NEAR(out.data()[i], want[j], 1e-6 * (1 + std::abs(want[j])));
      if (i % 7 != 0) continue;
      const double want_dx = derivative(xs[j]);
      EXPECT_NEAR(dx.data()[i], want_dx, 4e-6 * (1 + std::abs(want_dx))) << i;
      if (plain) continue;
      const double want_dgain = derivative(gains[j]);
      EXPECT_NEAR(dgain.data()[i], want_dgain, 4e-6 * (1 + std::abs(want_dgain))) << i;
    }
  }
}

TEST(GeluTest, EqualsScalarTwinAndDouble) {
  const NumericThread numeric;
  for (const int64_t n : {1, 5, 31, 40001}) {
    Guarded gate(n, 1), up(n, 2), dout(n, 3), out(n, 4), dgate(n, 5), dup(n, 6);
    gate.FillWide(1, 2.0f), up.FillWide(2), dout.FillWide(3);
    reference::GeluGlu(n, gate.data(), up.data(), out.data());
    reference::GeluGluBackward(n, gate.data(), up.data(), dout.data(), dgate.data(), dup.data());
    OnEveryIsa([&](Pool& pool) {
      Guarded out2(n, 4), dgate2(n, 5), dup2(n, 6);
      GeluGlu(pool, n, gate.data(), up.data(), out2.data());
      GeluGluBackward(pool, n, gate.data(), up.data(), dout.data(), dgate2.data(), dup2.data());
      EXPECT_EQ(CountDifferentBits(out.span(), out2.span()), 0);
      EXPECT_EQ(CountDifferentBits(dgate.span(), dgate2.span()), 0);
      EXPECT_EQ(CountDifferentBits(dup.span(), dup2.span()), 0);
    });
    const auto gelu = [](double g) {
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
    };
    for (int64_t i = 0; i < std::min<int64_t>(n, 4000); ++i) {
      const double g = gate.data()[i], u = up.data()[i], d = dout.data()[i];
      EXPECT_NEAR(out.data()[i], gelu(g) * u, 2e-6 * (1 + std::abs(g * u)));
      EXPECT_NEAR(dup.data()[i], gelu(g) * d, 2e-6 * (1 + std::abs(g * d)));
      const double slope = (gelu(g + 1e-5) - gelu(g - 1e-5)) / 2e-5;
      EXPECT_NEAR(dgate.data()[i], d * u * slope, 3e-6 * (1 + std::abs(d * u)));
    }
  }
}

TEST(SoftplusTest, EqualsScalarTwinAndDouble) {
  const NumericThread numeric;
  for (const int64_t n : {1, 5, 31, 40001}) {
    Guarded x(n, 1), dout(n, 2), out(n, 3), dx(n, 4);
    x.FillWide(1, 2.0f), dout.FillWide(2);
    if (n > 20) x.data()[0] = 100.0f, x.data()[1] = -100.0f, x.data()[2] = -0.0f;
    reference::Softplus(n, x.data(), out.data());
    reference::SoftplusBackward(n, x.data(), dout.data(), dx.data());
    OnEveryIsa([&](Pool& pool) {
      Guarded out2(n, 3), dx2(n, 4);
      Softplus(pool, n, x.data(), out2.data());
      SoftplusBackward(pool, n, x.data(), dout.data(), dx2.data());
      EXPECT_EQ(CountDifferentBits(out.span(), out2.span()), 0);
      EXPECT_EQ(CountDifferentBits(dx.span(), dx2.span()), 0);
      std::memcpy(dx2.data(), dout.data(), static_cast<size_t>(n) * sizeof(float));
      SoftplusBackward(pool, n, x.data(), dx2.data(), dx2.data());
      EXPECT_EQ(CountDifferentBits(dx.span(), dx2.span()), 0);
    });
    for (int64_t i = 0; i < n; ++i) {
      const double v = x.data()[i], s = 1.0 / (1.0 + std::exp(-v));
      const double want = v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v));
      // Least normal numbers apart, 1 ulp of the function and 3 of its slope, whose parts round.
      EXPECT_NEAR(out.data()[i], want, 0x1p-23 * want + 0x1p-126);
      EXPECT_NEAR(dx.data()[i], dout.data()[i] * s,
                  0x1.8p-22 * std::abs(dout.data()[i] * s) + 0x1p-126 * std::abs(dout.data()[i]));
    }
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

TEST(RopeTest, YarnAgreesWithDouble) {
  for (const bool truncate : {true, false}) {
    RopeScaling scaling{RopeScaling::Kind::kYarn, 32.0};
    scaling.original_max_positions = 64.0;
    scaling.truncate = truncate;
    const StatusOr<RopeTable> plain = RopeTable::Create(32, 150000.0, {}, 9);
    const StatusOr<RopeTable> table = RopeTable::Create(32, 150000.0, scaling, 9);
    ASSERT_TRUE(plain.ok() && table.ok());
    const double ln = std::log(150000.0);
    double low = 32 * std::log(64 / (2 * M_PI * 32)) / (2 * ln);
    double high = 32 * std::log(64 / (2 * M_PI)) / (2 * ln);
    if (truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    const double magnitude = 0.1 * std::log(32.0) + 1;
    EXPECT_NEAR(table->attention_factor(), magnitude, 1e-15);
    int between = 0;
    for (int i = 0; i < 16; ++i) {
      const double f = plain->inv_freq()[i], ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
      between += ramp > 0 && ramp < 1;
      EXPECT_NEAR(table->inv_freq()[i], ramp * f / 32 + (1 - ramp) * f, 6e-8 * f) << i;
      const double angle = 7.0 * table->inv_freq()[i];
      EXPECT_EQ(table->cosines(7)[i], static_cast<float>(std::cos(angle) * magnitude));
      EXPECT_EQ(table->sines(7)[i], static_cast<float>(std::sin(angle) * magnitude));
    }
    EXPECT_GT(between, 0);
    scaling.mscale = 0.5, scaling.mscale_all_dim = 2.0;
    EXPECT_NEAR(RopeTable::Create(32, 150000.0, scaling, 9)->attention_factor(),
                (0.05 * std::log(32.0) + 1) / (0.2 * std::log(32.0) + 1), 1e-15);
    scaling.attention_factor = 1.5;
    EXPECT_EQ(RopeTable::Create(32, 150000.0, scaling, 9)->attention_factor(), 1.5);
  }
  for (double x = 1e-3; x < 1e9; x *= 1.37) EXPECT_NEAR(DLogDouble(x), std::log(x), 4e-15 * 21);
}

TEST(RopeTest, ScalingsTurnByTheirFrequencies) {
  const StatusOr<RopeTable> plain = RopeTable::Create(16, 10000.0, {}, 100);
  const StatusOr<RopeTable> linear =
      RopeTable::Create(16, 10000.0, {RopeScaling::Kind::kLinear, 4.0}, 100);
  ASSERT_TRUE(plain.ok() && linear.ok());
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(linear->inv_freq()[i], plain->inv_freq()[i] / 4.0f);
    EXPECT_EQ(linear->cosines(80)[i], plain->cosines(20)[i]);
  }
}

// Channels beyond the rotated ones pass; interleaved pairs are those of the half form, reordered.
TEST(RopeTest, PartialAndInterleavedRotations) {
  const NumericThread numeric;
  const StatusOr<RopeTable> half = RopeTable::Create(24, 10000.0, {}, 50, 8);
  const StatusOr<RopeTable> pairs =
      RopeTable::Create(24, 10000.0, {}, 50, 8, RopePairs::kInterleaved);
  ASSERT_TRUE(half.ok() && pairs.ok());
  const int32_t position = 37;
  std::vector<float> x(24), y;
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.3f + static_cast<float>(i);
  Pool pool(1);
  std::vector<float> a = x, b(24);
  ApplyRope(pool, *half, a.data(), 24, 1, 1, &position);
  for (size_t i = 8; i < 24; ++i) EXPECT_EQ(a[i], x[i]);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(a[i],
                x[i] * std::cos(37 * std::pow(10000.0, -0.25 * static_cast<double>(i))) -
                    x[i + 4] * std::sin(37 * std::pow(10000.0, -0.25 * static_cast<double>(i))),
                1e-4);
    b[2 * i] = x[i], b[2 * i + 1] = x[i + 4];
  }
  std::copy(x.begin() + 8, x.end(), b.begin() + 8);
  const std::vector<float> interleaved = b;
  ApplyRope(pool, *pairs, b.data(), 24, 1, 1, &position);
  EXPECT_EQ(CountDifferentBits(a, b), 0);
  ApplyRopeBackward(pool, *pairs, b.data(), 24, 1, 1, &position);
  for (size_t i = 0; i < 24; ++i) EXPECT_NEAR(b[i], interleaved[i], 1e-5);
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
  RopeScaling yarn{RopeScaling::Kind::kYarn, 8.0};
  EXPECT_TRUE(RopeTable::Create(8, 10000.0, yarn, 9).ok());
  yarn.beta_slow = 40;
  EXPECT_EQ(RopeTable::Create(8, 10000.0, yarn, 9).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::Create(8, 10000.0, {}, 9, 10).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RopeTable::Create(8, 10000.0, {}, 9, 3).status().code(), StatusCode::kInvalidArgument);
}

TEST(RopeTest, RotationEqualsScalarTwinAndBackwardUndoesIt) {
  const NumericThread numeric;
  const struct {
    int head_dim, rotary_dim;
    RopePairs pairs;
  } shapes[] = {{2, 2, RopePairs::kHalf},          {6, 6, RopePairs::kHalf},
                {32, 32, RopePairs::kHalf},        {64, 64, RopePairs::kHalf},
                {90, 90, RopePairs::kHalf},        {64, 16, RopePairs::kHalf},
                {64, 64, RopePairs::kInterleaved}, {40, 38, RopePairs::kInterleaved}};
  for (const auto& [head_dim, rotary_dim, pairs] : shapes) {
    const StatusOr<RopeTable> table =
        RopeTable::Create(head_dim, 10000.0, {}, 500, rotary_dim, pairs);
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
      // Beside the state, which stays as it is.
      Guarded p3(n, 5), m3(n, 6), v3(n, 7), p4(n, 2), m4(n, 3), v4(n, 4);
      fill(p2, m2, v2), fill(p4, m4, v4);
      EXPECT_TRUE(AdamWStep(pool, n, *scalars, 0.3f, g.data(), {p2.data(), m2.data(), v2.data()},
                            {p3.data(), m3.data(), v3.data()}));
      EXPECT_EQ(CountDifferentBits(p.span(), p3.span()), 0);
      EXPECT_EQ(CountDifferentBits(m.span(), m3.span()), 0);
      EXPECT_EQ(CountDifferentBits(v.span(), v3.span()), 0);
      EXPECT_EQ(CountDifferentBits(p2.span(), p4.span()), 0);
      EXPECT_EQ(CountDifferentBits(m2.span(), m4.span()), 0);
      EXPECT_EQ(CountDifferentBits(v2.span(), v4.span()), 0);
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
