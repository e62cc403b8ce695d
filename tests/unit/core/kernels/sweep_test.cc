// SPDX-License-Identifier: Apache-2.0
//
// The sweeps (tests/support/kernel_sweep.h) of linears, the head and the norm, in every mode, and
// the accuracy of a weight gradient over many tokens. Which instruction sets the sweeps could not
// run on this CPU is said by a skipped test with the reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/head.h"
#include "core/kernels/linear.h"
#include "core/kernels/norm.h"
#include "core/kernels/order.h"
#include "core/kernels/reference_head.h"
#include "core/kernels/reference_linear.h"
#include "core/kernels/reference_ops.h"
#include "tests/support/kernel_sweep.h"

namespace titan::kernels {
namespace {

using tests::Backwards;
using tests::Floats;
using tests::LowerHalvesFirst;
using tests::Rounded;
using tests::SweepMatrix;
using tests::SweepTest;
using titan::testing::UniformFloats;
using titan::testing::WideFloats;

class SweptSetsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SweptSetsTest, AreThoseOfThisCpu) {
  const Status status = CheckIsa(GetParam());
  const std::vector<std::string> names = tests::IsaNames(Inputs::kBf16);
  EXPECT_EQ(std::count(names.begin(), names.end(), GetParam()), status.ok() ? 1 : 0);
  if (!status.ok()) GTEST_SKIP() << "not swept: " << status;
}

INSTANTIATE_TEST_SUITE_P(Isa, SweptSetsTest, ::testing::Values("avx2", "avx512", "avx512_bf16"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(SweepTest, LinearAndItsGradients) {
  Guards({"reversed chains"});
  while (Goes()) {
    const int leaves = 1 << random_.Below(4);
    const int64_t m = Between(1, 70), n = Between(1, 300);
    const int64_t k = leaves == 1 ? Between(1, 90) : 2 * leaves * Between(1, 24);
    const Floats x = WideFloats(m * k, Seed()), w = WideFloats(n * k, Seed());
    const SweepMatrix matrix(w, n, k);
    Floats want(static_cast<size_t>(m * n));
    reference::Linear(x.data(), k, m, w.data(), n, k, leaves, nullptr, want.data(), n);
    Compare("linear", want, [&](Pool& pool, Floats& got) {
      Linear(pool, {x.data(), k, m, k}, {matrix.panels.data(), n, leaves, nullptr, got.data(), n});
    });
    Floats want_half(want.size());
    reference::Linear(x.data(), k, m, matrix.rounded.data(), n, k, leaves, nullptr,
                      want_half.data(), n);
    Compare("linear w16", want_half, [&](Pool& pool, Floats& got) {
      Linear(pool, {x.data(), k, m, k}, {matrix.half.data(), n, leaves, nullptr, got.data(), n});
    });
    const Floats dy = WideFloats(m * n, Seed());
    Floats gradient(static_cast<size_t>(n * k));
    reference::LinearWeightGradient(x.data(), k, dy.data(), n, m, n, k, gradient.data());
    Compare("weight gradient", gradient, [&](Pool& pool, Floats& got) {
      Floats sum(matrix.panels.size());
      LinearWeightGradient(pool, {x.data(), k, m, k}, {dy.data(), n, n, sum.data()});
      UnpackPanels(pool, sum.data(), n, k, got.data());
    });
    if (k < 24) continue;  // too little to round differently for sure
    Floats wrong(want.size());
    reference::Linear(Backwards(x, k).data(), k, m, Backwards(w, k).data(), n, k, leaves, nullptr,
                      wrong.data(), n);
    MustDiffer("reversed chains", want, wrong);
  }
}

TEST_F(SweepTest, LinearAndWeightGradientInBf16) {
  Guards({"lower halves first", "rows that are not rounded", "gradient of rows not rounded"});
  while (Goes()) {
    const int leaves = 1 << random_.Below(4);
    // Now and then a chain of which parts are parked in memory.
    const bool parked = round_ % 16 == 1;
    const int64_t m = Between(1, parked ? 40 : 150), n = Between(1, parked ? 60 : 300);
    const int64_t k = parked        ? 2 * leaves * (1250 / leaves + Between(1, 60)) + (leaves == 1)
                      : leaves == 1 ? Between(1, 200)
                                    : 2 * leaves * Between(1, 24);
    Floats x = WideFloats(m * k, Seed());
    const Floats w = WideFloats(n * k, Seed());
    const float edges[] = {-0.0f, 1e-40f, -1e-39f, 0x1.01p0f, -0x1.03p-60f, 0x1p-126f};
    for (size_t i = random_.Below(60); i < x.size(); i += 60) x[i] = edges[random_.Below(6)];
    const Floats rounded = Rounded(x), bias = WideFloats(n, Seed());
    const float* b = round_ % 2 == 0 ? bias.data() : nullptr;
    const SweepMatrix matrix(w, n, k);
    const auto twin = [&](const Floats& rows, const Floats& weights) {
      Floats out(static_cast<size_t>(m * n));
      reference::Linear(rows.data(), k, m, weights.data(), n, k, leaves, b, out.data(), n);
      return out;
    };
    const Floats want = twin(rounded, matrix.rounded);
    Compare(
        "linear", want,
        [&](Pool& pool, Floats& got) {
          Linear(pool, {x.data(), k, m, k, Inputs::kBf16},
                 {matrix.half.data(), n, leaves, b, got.data(), n});
        },
        Inputs::kBf16);
    const Floats dy = WideFloats(m * n, Seed());
    const auto gradient_twin = [&](const Floats& rows) {
      Floats out(static_cast<size_t>(n * k));
      reference::LinearWeightGradient(rows.data(), k, dy.data(), n, m, n, k, out.data());
      return out;
    };
    const Floats gradient = gradient_twin(rounded);
    Compare(
        "weight gradient", gradient,
        [&](Pool& pool, Floats& got) {
          Floats sum(matrix.panels.size());
          LinearWeightGradient(pool, {x.data(), k, m, k, Inputs::kBf16},
                               {dy.data(), n, n, sum.data()});
          UnpackPanels(pool, sum.data(), n, k, got.data());
        },
        Inputs::kBf16);
    if (k < 24 || round_ % 4 != 0) continue;
    MustDiffer("lower halves first", want,
               twin(LowerHalvesFirst(rounded, k), LowerHalvesFirst(matrix.rounded, k)));
    MustDiffer("rows that are not rounded", want, twin(x, matrix.rounded));
    MustDiffer("gradient of rows not rounded", gradient, gradient_twin(x));
  }
}

// The head's logarithm of a row's sum with its chunks joined from the last to the first.
float LogSumOfChunksDescending(const Floats& logits, float max) {
  const auto vocab = static_cast<int64_t>(logits.size());
  float sum = 0.0f;
  for (int64_t begin = (vocab - 1) / kRowSumChunk * kRowSumChunk; begin >= 0;
       begin -= kRowSumChunk) {
    const auto chunk = logits.begin() + begin;
    Floats e(chunk, chunk + std::min(kRowSumChunk, vocab - begin));
    const float own = *std::max_element(e.begin(), e.end());
    for (float& value : e) value = DExp(value - own);
    sum =
        std::fma(reference::RowSum(e.data(), static_cast<int64_t>(e.size())), DExp(own - max), sum);
  }
  return DLog(sum);
}

class HeadSweepTest : public SweepTest {
 protected:
  // One problem, forward and backward. Rounded inputs take a bfloat16 head.
  void Head(Element element, Inputs inputs) {
    const int leaves = 1 << random_.Below(3);
    const HeadShape shape{Between(1, 3000), 2 * leaves * Between(1, 80 / (2 * leaves)), leaves,
                          0.7f, inputs};
    const int64_t rows = Between(1, 20);
    Floats hidden = UniformFloats(rows * shape.hidden, Seed(), 2);
    // Short sums of products of bfloat16 are exact unless their sizes differ much.
    for (size_t i = 0; i < hidden.size(); i += 3) hidden[i] *= 0x1p-9f;
    const Floats w = UniformFloats(shape.vocab * shape.hidden, Seed());
    const Floats dlp = UniformFloats(rows, Seed());
    std::vector<int32_t> targets;
    for (int64_t r = 0; r < rows; ++r) {
      targets.push_back(static_cast<int32_t>(random_.Below(shape.vocab)));
    }
    const std::vector<HeadUnit> units = {{0, rows / 2}, {rows / 2, rows - rows / 2}};
    const SweepMatrix matrix(w, shape.vocab, shape.hidden);
    const bool bf16 = inputs == Inputs::kBf16, half = element == Element::kBf16;
    const Floats x = bf16 ? Rounded(hidden) : hidden, &weights = half ? matrix.rounded : w;
    const int64_t d_floats = rows * shape.hidden, w_floats = shape.vocab * shape.hidden;
    // log-prob, max, log-sum, entropy, dhidden, dW in one array.
    Floats want(static_cast<size_t>(4 * rows + d_floats + w_floats));
    float* to = want.data();
    reference::HeadLogProb(shape, x.data(), shape.hidden, rows, weights.data(), targets.data(), to,
                           to + rows, to + 2 * rows, to + 3 * rows);
    reference::HeadLogProbBackward(shape, x.data(), shape.hidden, rows, weights.data(),
                                   targets.data(), dlp.data(), to + rows, to + 2 * rows, units,
                                   to + 4 * rows, shape.hidden, to + 4 * rows + d_floats);
    const ConstPanels panels =
        half ? ConstPanels(matrix.half.data()) : ConstPanels(matrix.panels.data());
    Compare(
        half && !bf16 ? "head w16" : "head", want,
        [&](Pool& pool, Floats& got) {
          float* out = got.data();
          Floats sum(matrix.panels.size());
          HeadLogProb(pool, shape, hidden.data(), shape.hidden, rows, panels, targets.data(), out,
                      out + rows, out + 2 * rows, out + 3 * rows);
          HeadLogProbBackward(pool, shape, hidden.data(), shape.hidden, rows, panels,
                              targets.data(), dlp.data(), out + rows, out + 2 * rows, units,
                              out + 4 * rows, shape.hidden, sum.data());
          UnpackPanels(pool, sum.data(), shape.vocab, shape.hidden, out + 4 * rows + d_floats);
        },
        inputs);
    const std::span<const float> max(to + rows, static_cast<size_t>(rows)),
        log_sum(to + 2 * rows, static_cast<size_t>(rows));
    if (shape.vocab > kRowSumChunk) {
      Floats wrong;
      for (int64_t r = 0; r < rows; ++r) {
        Floats z(static_cast<size_t>(shape.vocab));
        reference::Linear(x.data() + r * shape.hidden, shape.hidden, 1, weights.data(), shape.vocab,
                          shape.hidden, leaves, nullptr, z.data(), shape.vocab);
        for (float& value : z) value = value * shape.inv_temperature;
        wrong.push_back(LogSumOfChunksDescending(z, max[static_cast<size_t>(r)]));
      }
      MustDiffer("chunks descending", log_sum, wrong);
    }
    if (bf16 && shape.hidden >= 24) {
      Floats out(static_cast<size_t>(4 * rows));
      float* other = out.data();
      reference::HeadLogProb(shape, LowerHalvesFirst(x, shape.hidden).data(), shape.hidden, rows,
                             LowerHalvesFirst(weights, shape.hidden).data(), targets.data(), other,
                             other + rows, other + 2 * rows, other + 3 * rows);
      MustDiffer("lower halves first", std::span<const float>(want).first(out.size()), out);
    }
  }

  void Norm() {
    const int64_t rows = Between(1, 20), width = Between(1, 2500);
    const Floats x = WideFloats(rows * width, Seed()), gain = UniformFloats(width, Seed());
    const Floats dy = WideFloats(rows * width, Seed());
    const std::vector<RowRange> ranges = {{0, rows}};
    Floats norm(static_cast<size_t>(2 * rows * width + rows + width));
    float* n = norm.data();
    reference::RmsNorm(x.data(), rows, width, gain.data(), 1e-5f, n, n + 2 * rows * width);
    reference::RmsNormBackward(x.data(), rows, width, gain.data(), n + 2 * rows * width, dy.data(),
                               n + rows * width, ranges, n + 2 * rows * width + rows);
    Compare("norm", norm, [&](Pool& pool, Floats& got) {
      float* g = got.data();
      std::fill_n(g + 2 * rows * width + rows, width, 0.0f);
      RmsNorm(pool, x.data(), rows, width, gain.data(), 1e-5f, g, g + 2 * rows * width);
      RmsNormBackward(pool, x.data(), rows, width, gain.data(), g + 2 * rows * width, dy.data(),
                      g + rows * width, ranges, g + 2 * rows * width + rows);
    });
    if (width < 200) return;
    Floats right, wrong;
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x.data() + r * width;
      wrong.push_back(0.0f);
      for (int64_t i = 0; i < width; ++i) wrong.back() = std::fma(row[i], row[i], wrong.back());
      right.push_back(reference::RowSumProduct(row, row, width));
    }
    MustDiffer("a plain sum of squares", right, wrong);
  }
};

TEST_F(HeadSweepTest, HeadAndNorm) {
  Guards({"chunks descending", "a plain sum of squares"});
  while (Goes()) {
    Head(round_ % 3 == 0 ? Element::kBf16 : Element::kF32, Inputs::kF32);
    Norm();
  }
}

TEST_F(HeadSweepTest, HeadInBf16) {
  Guards({"chunks descending", "lower halves first"});
  while (Goes()) Head(Element::kBf16, Inputs::kBf16);
}

// dW of 262,144 tokens in units of 1024 against float64; one chain over all of them is worse.
TEST(WeightGradientAccuracyTest, UnitsKeepItOverManyTokens) {
  const NumericThread numeric;
  constexpr int64_t kTokens = 262144, kN = 32, kK = 16;
  const auto x = UniformFloats(kTokens * kK, 1), dy = UniformFloats(kTokens * kN, 2);
  std::vector<double> exact(kN * kK, 0.0);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t k = 0; k < kK; ++k) {
        exact[n * kK + k] += double{dy[t * kN + n]} * x[t * kK + k];
      }
    }
  }
  Pool pool(2);
  const auto error_of = [&](int64_t unit) {
    std::vector<float> panels(static_cast<size_t>(PanelFloats(kN, kK))), rows(kN * kK);
    for (int64_t t = 0; t < kTokens; t += unit) {
      LinearWeightGradient(pool, {x.data() + t * kK, kK, unit, kK},
                           {dy.data() + t * kN, kN, kN, panels.data()});
    }
    UnpackPanels(pool, panels.data(), kN, kK, rows.data());
    double error = 0, norm = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      error += (rows[i] - exact[i]) * (rows[i] - exact[i]);
      norm += exact[i] * exact[i];
    }
    return std::sqrt(error / norm);
  };
  const double units = error_of(kUnitTokens), one_chain = error_of(kTokens);
  std::printf("dW over %lld tokens: units %.2e, one chain %.2e rms relative\n",
              static_cast<long long>(kTokens), units, one_chain);
  EXPECT_LE(units, 1e-6);
  EXPECT_GT(one_chain, 4 * units);
}

}  // namespace
}  // namespace titan::kernels
