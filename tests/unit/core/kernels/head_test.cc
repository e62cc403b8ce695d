// SPDX-License-Identifier: Apache-2.0
//
// The fused head equals its scalar reference bit for bit, forward and backward, for both
// instruction sets, any rows and threads; a row's bits are its own; the values agree with float64.
#include "core/kernels/head.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"
#include "core/kernels/reference_head.h"
#include "core/kernels/sampling.h"
#include "tests/support/kernel_data.h"

namespace titan::kernels {
namespace {

using titan::testing::IsPoison;
using titan::testing::PoisonedFloats;
using titan::testing::SameBits;
using titan::testing::TestRandom;
using titan::testing::UniformFloats;

std::vector<Isa> Isas() {
  std::vector<Isa> isas = {Isa::kAvx2};
  if (*DetectIsa() == Isa::kAvx512) isas.push_back(Isa::kAvx512);
  return isas;
}

class HeadTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa("auto").ok()); }
  NumericThread environment_;
};

struct Problem {
  Problem(int64_t rows, int64_t vocab, int64_t hidden, int leaves, float inv_temperature,
          uint64_t seed)
      : rows(rows), ldh(hidden + 2) {
    shape = {vocab, hidden, leaves, inv_temperature};
    x = UniformFloats(rows * ldh, seed);
    weight = UniformFloats(vocab * hidden, seed + 1);
    Pool pool(1);
    panels.resize(static_cast<size_t>(PanelFloats(vocab, hidden)));
    PackPanels(pool, weight.data(), vocab, hidden, panels.data());
    TestRandom random(seed + 2);
    for (int64_t r = 0; r < rows; ++r) {
      targets.push_back(static_cast<int32_t>(random.Below(vocab)));
      dlp.push_back(random.Uniform());
    }
  }
  HeadShape shape;
  int64_t rows, ldh;
  std::vector<float> x, weight, panels, dlp;
  std::vector<int32_t> targets;
};

struct Forward {
  explicit Forward(int64_t rows)
      : log_prob(PoisonedFloats(rows)),
        max(PoisonedFloats(rows)),
        log_sum(PoisonedFloats(rows)),
        entropy(PoisonedFloats(rows)) {}
  std::vector<float> log_prob, max, log_sum, entropy;
};

Forward RunForward(const Problem& p, Pool& pool) {
  Forward f(p.rows);
  HeadLogProb(pool, p.shape, p.x.data(), p.ldh, p.rows, p.panels.data(), p.targets.data(),
              f.log_prob.data(), f.max.data(), f.log_sum.data(), f.entropy.data());
  return f;
}

Forward ReferenceForward(const Problem& p) {
  Forward f(p.rows);
  reference::HeadLogProb(p.shape, p.x.data(), p.ldh, p.rows, p.weight.data(), p.targets.data(),
                         f.log_prob.data(), f.max.data(), f.log_sum.data(), f.entropy.data());
  return f;
}

TEST_P(HeadTest, ForwardEqualsTheReference) {
  for (const int64_t rows : {1, 2, 13, 60, 71}) {
    const Problem p(rows, 2600, 40, 2, 1.25f, 10 + static_cast<uint64_t>(rows));
    Pool pool(1 + static_cast<int>(rows % 4));
    const Forward got = RunForward(p, pool), wanted = ReferenceForward(p);
    EXPECT_TRUE(SameBits(got.log_prob.data(), wanted.log_prob.data(), rows));
    EXPECT_TRUE(SameBits(got.max.data(), wanted.max.data(), rows));
    EXPECT_TRUE(SameBits(got.log_sum.data(), wanted.log_sum.data(), rows));
    EXPECT_TRUE(SameBits(got.entropy.data(), wanted.entropy.data(), rows));
  }
}

// What the sampler reports for a token is what the trainer computes.
TEST_P(HeadTest, LogProbHasTheBitsOfTheSamplersLogProb) {
  for (const int64_t vocab : {1, 33, 1024, 1025, 3000}) {
    const Problem p(9, vocab, 64, 2, 0.7f, static_cast<uint64_t>(vocab));
    Pool pool(2);
    const Forward got = RunForward(p, pool);
    std::vector<float> logits(static_cast<size_t>(p.rows * vocab));
    Linear(pool, {p.x.data(), p.ldh, p.rows, 64},
           {p.panels.data(), vocab, 2, nullptr, logits.data(), vocab});
    const NumericThread numeric;
    for (int64_t r = 0; r < p.rows; ++r) {
      const float* row = logits.data() + r * vocab;
      const LogSoftmaxStats stats = ComputeLogSoftmax(row, vocab, 0.7f);
      const float lp = LogProbOf(row, p.targets[static_cast<size_t>(r)], 0.7f, stats);
      EXPECT_EQ(std::bit_cast<uint32_t>(lp), std::bit_cast<uint32_t>(got.log_prob[r])) << vocab;
    }
  }
}

TEST_P(HeadTest, AgreesWithFloat64) {
  const Problem p(20, 3000, 256, 1, 1.0f, 77);
  Pool pool(2);
  const Forward got = RunForward(p, pool);
  for (int64_t r = 0; r < p.rows; ++r) {
    std::vector<double> z;
    double max = -1e300, sum = 0, entropy = 0;
    for (int64_t j = 0; j < p.shape.vocab; ++j) {
      double value = 0;
      for (int64_t i = 0; i < 256; ++i) {
        value +=
            static_cast<double>(p.x[r * p.ldh + i]) * static_cast<double>(p.weight[j * 256 + i]);
      }
      z.push_back(value);
      max = std::max(max, value);
    }
    for (const double value : z) sum += std::exp(value - max);
    for (const double value : z) {
      const double lp = value - max - std::log(sum);
      entropy -= std::exp(lp) * lp;
    }
    EXPECT_NEAR(got.log_prob[r], z[p.targets[r]] - max - std::log(sum), 2e-5);
    EXPECT_NEAR(got.entropy[r], entropy, 2e-5);
  }
}

TEST_P(HeadTest, ARowDoesNotSeeItsNeighbours) {
  const Problem p(90, 1500, 48, 1, 1.0f, 5);
  Pool pool(2);
  const Forward all = RunForward(p, pool);
  for (const int64_t r : {0, 17, 63, 89}) {
    Forward one(1);
    HeadLogProb(pool, p.shape, p.x.data() + r * p.ldh, p.ldh, 1, p.panels.data(), &p.targets[r],
                one.log_prob.data(), one.max.data(), one.log_sum.data(), nullptr);
    EXPECT_TRUE(SameBits(one.log_prob.data(), &all.log_prob[r], 1));
    EXPECT_TRUE(IsPoison(one.entropy[0]));
  }
}

TEST_P(HeadTest, NanGivesTheCanonicalNan) {
  Problem p(3, 1100, 32, 1, 1.0f, 6);
  p.x[p.ldh] = std::numeric_limits<float>::quiet_NaN();
  p.x[2 * p.ldh] = std::numeric_limits<float>::infinity();
  Pool pool(2);
  const Forward got = RunForward(p, pool), wanted = ReferenceForward(p);
  EXPECT_TRUE(SameBits(got.log_prob.data(), wanted.log_prob.data(), 3));
  EXPECT_FALSE(std::isnan(got.log_prob[0]));
  EXPECT_EQ(std::bit_cast<uint32_t>(got.log_prob[1]), 0x7fc00000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(got.log_prob[2]), 0x7fc00000u);
}

struct Backward {
  std::vector<float> dhidden, gradient;
};

Backward RunBackward(const Problem& p, const Forward& f, std::span<const HeadUnit> units,
                     Pool& pool, const std::vector<float>& gradient_rows) {
  const int64_t h = p.shape.hidden;
  Backward b;
  b.dhidden = PoisonedFloats(p.rows * h);
  b.gradient.resize(static_cast<size_t>(PanelFloats(p.shape.vocab, h)));
  PackPanels(pool, gradient_rows.data(), p.shape.vocab, h, b.gradient.data());
  HeadLogProbBackward(pool, p.shape, p.x.data(), p.ldh, p.rows, p.panels.data(), p.targets.data(),
                      p.dlp.data(), f.max.data(), f.log_sum.data(), units, b.dhidden.data(), h,
                      b.gradient.data());
  return b;
}

// Sizes whose leaves end inside a block of 1024 columns, on its edge, and not at all.
TEST_P(HeadTest, BackwardEqualsTheReference) {
  struct Case {
    int64_t rows, vocab, hidden;
    int leaves;
  };
  for (const Case c : {Case{37, 2560, 48, 2}, Case{5, 2048, 33, 1}, Case{20, 4800, 40, 4},
                       Case{16, 1001, 64, 1}, Case{1, 70, 32, 1}, Case{300, 1100, 32, 1}}) {
    const Problem p(c.rows, c.vocab, c.hidden, c.leaves, 1.5f, static_cast<uint64_t>(c.vocab));
    Pool pool(1 + static_cast<int>(c.rows % 3));
    const Forward f = RunForward(p, pool);
    const std::vector<HeadUnit> units = {
        {0, c.rows / 3}, {c.rows / 3, 0}, {c.rows / 3, c.rows - c.rows / 3}};
    const std::vector<float> start = UniformFloats(c.vocab * c.hidden, 8);
    const Backward got = RunBackward(p, f, units, pool, start);
    std::vector<float> dhidden(static_cast<size_t>(c.rows * c.hidden)), gradient = start;
    reference::HeadLogProbBackward(p.shape, p.x.data(), p.ldh, p.rows, p.weight.data(),
                                   p.targets.data(), p.dlp.data(), f.max.data(), f.log_sum.data(),
                                   units, dhidden.data(), c.hidden, gradient.data());
    std::vector<float> packed(got.gradient.size());
    PackPanels(pool, gradient.data(), c.vocab, c.hidden, packed.data());
    EXPECT_TRUE(SameBits(got.dhidden.data(), dhidden.data(), c.rows * c.hidden)) << c.vocab;
    EXPECT_TRUE(SameBits(got.gradient.data(), packed.data(), PanelFloats(c.vocab, c.hidden)))
        << c.vocab;
  }
}

// Vacuity guard: other units give other bits, so the comparison above sees the unit boundaries.
TEST_P(HeadTest, OtherUnitsGiveOtherBits) {
  const Problem p(40, 1030, 48, 1, 1.0f, 12);
  Pool pool(2);
  const Forward f = RunForward(p, pool);
  const std::vector<float> start = UniformFloats(1030 * 48, 8);
  const std::vector<HeadUnit> one = {{0, 40}}, two = {{0, 20}, {20, 20}};
  const Backward a = RunBackward(p, f, one, pool, start), b = RunBackward(p, f, two, pool, start);
  EXPECT_TRUE(SameBits(a.dhidden.data(), b.dhidden.data(), 40 * 48));
  int64_t differing = 0;
  for (size_t i = 0; i < a.gradient.size(); ++i) differing += a.gradient[i] != b.gradient[i];
  EXPECT_GT(differing, static_cast<int64_t>(a.gradient.size() / 20));
}

// Against central differences of the reference in double.
TEST_P(HeadTest, BackwardIsTheDerivative) {
  const Problem p(4, 300, 24, 1, 0.8f, 14);
  Pool pool(2);
  const Forward f = RunForward(p, pool);
  const std::vector<HeadUnit> units = {{0, 4}};
  const Backward got = RunBackward(p, f, units, pool, std::vector<float>(300 * 24, 0.0f));
  const auto loss = [&](int64_t r, int64_t i, double step) {
    std::vector<double> z;
    double sum = 0;
    for (int64_t j = 0; j < 300; ++j) {
      double value = 0;
      for (int64_t k = 0; k < 24; ++k) {
        value += (static_cast<double>(p.x[r * p.ldh + k]) + (k == i ? step : 0)) *
                 static_cast<double>(p.weight[j * 24 + k]);
      }
      z.push_back(value * 0.8f);
      sum += std::exp(z.back());
    }
    return static_cast<double>(p.dlp[r]) * (z[p.targets[r]] - std::log(sum));
  };
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 24; i += 5) {
      const double slope = (loss(r, i, 1e-5) - loss(r, i, -1e-5)) / 2e-5;
      EXPECT_NEAR(got.dhidden[r * 24 + i], slope, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, HeadTest, ::testing::ValuesIn(Isas()),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

}  // namespace
}  // namespace titan::kernels
