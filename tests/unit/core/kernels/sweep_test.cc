// SPDX-License-Identifier: Apache-2.0
//
// Kernels against their scalar twins over random shapes until the wanted number of outputs was
// compared by bits (--outputs=N), every instruction set in one process, random thread counts.
// Shapes, values and threads are functions of the seed alone. A deliberately wrong order is held
// against every product too and must differ: else the comparison would be empty.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/kernels/attention.h"
#include "core/kernels/head.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/norm.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"
#include "core/kernels/reference_head.h"
#include "core/kernels/reference_linear.h"
#include "core/kernels/reference_ops.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernel_data.h"

namespace titan::kernels {
namespace {

using titan::testing::TestRandom;
using titan::testing::UniformFloats;
using titan::testing::WideFloats;

int64_t WantedOutputs() {
  for (const std::string& argument : ::testing::internal::GetArgvs()) {
    if (argument.rfind("--outputs=", 0) == 0) return std::atoll(argument.c_str() + 10);
  }
  return 5'000'000;
}

class SweepTest : public ::testing::Test {
 protected:
  void TearDown() override {
    ASSERT_TRUE(SetIsa("auto").ok());
    RecordProperty("outputs", std::to_string(compared_));
    EXPECT_GE(compared_, WantedOutputs());
    EXPECT_GT(wrong_, 0);
    EXPECT_EQ(wrong_unseen_, 0) << "of " << wrong_ << " products in a wrong order";
  }

  // Every instruction set writes `got` and is compared.
  template <typename Run>
  void Compare(const char* what, const std::vector<float>& want, const Run& run) {
    for (const Isa isa : tests::AllIsas()) {
      ASSERT_TRUE(SetIsa(isa).ok());
      const int threads = static_cast<int>(1 + random_.Below(3));
      Pool pool(threads);
      std::vector<float> got = titan::testing::PoisonedFloats(static_cast<int64_t>(want.size()));
      run(pool, got);
      const int64_t differing = tests::CountDifferentBits(got, want);
      ASSERT_EQ(differing, 0) << what << " round " << round_ << " " << IsaName(isa) << " threads "
                              << threads;
      compared_ += static_cast<int64_t>(want.size());
    }
  }
  void MustDiffer(const std::vector<float>& want, const std::vector<float>& wrong) {
    ++wrong_;
    if (tests::CountDifferentBits(want, wrong) == 0) ++wrong_unseen_;
  }
  bool Goes() {
    ++round_;
    return compared_ < WantedOutputs() && !HasFatalFailure();
  }

  const NumericThread numeric_;
  TestRandom random_{2026};
  int64_t round_ = 0, compared_ = 0, wrong_ = 0, wrong_unseen_ = 0;
};

TEST_F(SweepTest, LinearAndItsGradients) {
  while (Goes()) {
    const int leaves = 1 << random_.Below(4);
    const int64_t m = 1 + random_.Below(70), n = 1 + random_.Below(300);
    const int64_t k = leaves == 1 ? 1 + random_.Below(90) : 2 * leaves * (1 + random_.Below(24));
    const auto seed = static_cast<uint64_t>(round_) * 8;
    const std::vector<float> x = WideFloats(m * k, seed), w = WideFloats(n * k, seed + 1);
    std::vector<float> want(static_cast<size_t>(m * n));
    reference::Linear(x.data(), k, m, w.data(), n, k, leaves, nullptr, want.data(), n);
    Pool one(1);
    std::vector<float> panels(static_cast<size_t>(PanelFloats(n, k)));
    PackPanels(one, w.data(), n, k, panels.data());
    Compare("linear", want, [&](Pool& pool, std::vector<float>& got) {
      Linear(pool, {x.data(), k, m, k}, {panels.data(), n, leaves, nullptr, got.data(), n});
    });
    std::vector<BFloat16> half(static_cast<size_t>(PanelElements(Element::kBf16, n, k)));
    ASSERT_TRUE(PackPanels(one, w.data(), n, k, half.data()));
    std::vector<float> rounded(w.size());
    UnpackPanels(one, half.data(), n, k, rounded.data());
    std::vector<float> want_half(want.size());
    reference::Linear(x.data(), k, m, rounded.data(), n, k, leaves, nullptr, want_half.data(), n);
    Compare("linear w16", want_half, [&](Pool& pool, std::vector<float>& got) {
      Linear(pool, {x.data(), k, m, k}, {half.data(), n, leaves, nullptr, got.data(), n});
    });
    const std::vector<float> dy = WideFloats(m * n, seed + 2);
    std::vector<float> gradient(static_cast<size_t>(n * k));
    reference::LinearWeightGradient(x.data(), k, dy.data(), n, m, n, k, gradient.data());
    Compare("weight gradient", gradient, [&](Pool& pool, std::vector<float>& got) {
      std::vector<float> sum(panels.size());
      LinearWeightGradient(pool, {x.data(), k, m, k}, {dy.data(), n, n, sum.data()});
      UnpackPanels(pool, sum.data(), n, k, got.data());
    });
    if (k < 24 || m * n < 64) continue;  // too little to round differently for sure
    std::vector<float> back_x(x), back_w(w);
    for (int64_t r = 0; r < m; ++r)
      std::reverse(back_x.begin() + r * k, back_x.begin() + r * k + k);
    for (int64_t r = 0; r < n; ++r)
      std::reverse(back_w.begin() + r * k, back_w.begin() + r * k + k);
    std::vector<float> wrong(want.size());
    reference::Linear(back_x.data(), k, m, back_w.data(), n, k, leaves, nullptr, wrong.data(), n);
    MustDiffer(want, wrong);
  }
}

TEST_F(SweepTest, AttentionForwardAndBackward) {
  while (Goes()) {
    const int kv_heads = static_cast<int>(1 + random_.Below(3));
    const int group = static_cast<int>(1 + random_.Below(5));
    const AttentionShape shape{kv_heads * group, kv_heads, static_cast<int>(1 + random_.Below(96)),
                               0.3f};
    // A prompt that some continue, or one sequence.
    const auto prefix = static_cast<int32_t>(1 + random_.Below(150));
    const int64_t children = random_.Below(4);
    std::vector<Segment> segments;
    std::vector<std::vector<int32_t>> pages;
    int32_t row = 0, page = 0;
    std::vector<int32_t> prefix_pages(static_cast<size_t>(NumPages(prefix)));
    for (int32_t& id : prefix_pages) id = page++;
    for (int64_t c = 0; c < children; ++c) {
      const auto rows = static_cast<int32_t>(1 + random_.Below(40));
      std::vector<int32_t> own(prefix_pages.begin(), prefix_pages.begin() + prefix / kPageTokens);
      while (static_cast<int64_t>(own.size()) < NumPages(prefix + rows)) own.push_back(page++);
      segments.push_back({row, rows, prefix, nullptr, static_cast<int32_t>(children)});
      pages.push_back(own);
      row += rows;
    }
    segments.push_back({row, prefix, 0, nullptr, -1});
    pages.push_back(prefix_pages);
    row += prefix;
    for (size_t i = 0; i < segments.size(); ++i) segments[i].pages = pages[i].data();
    const int64_t q_floats = int64_t{row} * shape.num_heads * shape.head_dim;
    const int64_t kv_floats = int64_t{row} * shape.num_kv_heads * shape.head_dim;
    const int64_t pairs = int64_t{row} * shape.num_heads;
    const auto seed = static_cast<uint64_t>(round_) * 8 + 1'000'000;
    const auto q = UniformFloats(q_floats, seed, 3), k = UniformFloats(kv_floats, seed + 1, 3);
    const auto v = UniformFloats(kv_floats, seed + 2), dout = UniformFloats(q_floats, seed + 3);
    std::vector<float> kv(static_cast<size_t>(page * PageFloats(shape)));
    reference::WriteKv(shape, k.data(), v.data(), segments, kv.data());
    // out, max, sum, dq, dk, dv in one array.
    std::vector<float> want(static_cast<size_t>(2 * q_floats + 2 * pairs + 2 * kv_floats));
    const auto parts = [&](std::vector<float>& all, const auto& body) {
      float* out = all.data();
      float* max = out + q_floats;
      float* sum = max + pairs;
      float* dq = sum + pairs;
      float* dk = dq + q_floats;
      body(out, max, sum, dq, dk, dk + kv_floats);
    };
    parts(want, [&](float* out, float* max, float* sum, float* dq, float* dk, float* dv) {
      reference::AttentionForward(shape, q.data(), segments, kv.data(), out, max, sum);
      reference::AttentionBackward(shape, q.data(), segments, kv.data(), out, dout.data(), max, sum,
                                   dq, dk, dv);
    });
    Compare("attention", want, [&](Pool& pool, std::vector<float>& got) {
      parts(got, [&](float* out, float* max, float* sum, float* dq, float* dk, float* dv) {
        AttentionForward(pool, shape, q.data(), segments, kv.data(), out, max, sum);
        AttentionBackward(pool, shape, q.data(), segments, kv.data(), out, dout.data(), max, sum,
                          dq, dk, dv);
      });
    });
    if (row < 100) continue;
    // Scores scaled after the chain instead of before it.
    AttentionShape unscaled = shape;
    unscaled.scale = 1.0f;
    std::vector<float> scaled_k(k);
    for (float& value : scaled_k) value *= shape.scale;
    std::vector<float> wrong(want), wrong_kv(kv.size());
    reference::WriteKv(unscaled, scaled_k.data(), v.data(), segments, wrong_kv.data());
    reference::AttentionForward(unscaled, q.data(), segments, wrong_kv.data(), wrong.data(),
                                nullptr, nullptr);
    MustDiffer(want, wrong);
  }
}

TEST_F(SweepTest, HeadAndNorm) {
  while (Goes()) {
    const HeadShape shape{1 + random_.Below(3000), 2 * (1 + random_.Below(40)), 2, 0.7f};
    const int64_t rows = 1 + random_.Below(20);
    const auto seed = static_cast<uint64_t>(round_) * 8 + 2'000'000;
    const auto hidden = UniformFloats(rows * shape.hidden, seed, 2);
    const auto w = UniformFloats(shape.vocab * shape.hidden, seed + 1);
    const auto dlp = UniformFloats(rows, seed + 2);
    std::vector<int32_t> targets;
    for (int64_t r = 0; r < rows; ++r) {
      targets.push_back(static_cast<int32_t>(random_.Below(shape.vocab)));
    }
    const std::vector<HeadUnit> units = {{0, rows / 2}, {rows / 2, rows - rows / 2}};
    Pool one(1);
    std::vector<float> panels(static_cast<size_t>(PanelFloats(shape.vocab, shape.hidden)));
    PackPanels(one, w.data(), shape.vocab, shape.hidden, panels.data());
    const int64_t d_floats = rows * shape.hidden, w_floats = shape.vocab * shape.hidden;
    // log-prob, max, log-sum, entropy, dhidden, dW in one array.
    std::vector<float> want(static_cast<size_t>(4 * rows + d_floats + w_floats));
    float* to = want.data();
    reference::HeadLogProb(shape, hidden.data(), shape.hidden, rows, w.data(), targets.data(), to,
                           to + rows, to + 2 * rows, to + 3 * rows);
    reference::HeadLogProbBackward(shape, hidden.data(), shape.hidden, rows, w.data(),
                                   targets.data(), dlp.data(), to + rows, to + 2 * rows, units,
                                   to + 4 * rows, shape.hidden, to + 4 * rows + d_floats);
    Compare("head", want, [&](Pool& pool, std::vector<float>& got) {
      float* out = got.data();
      std::vector<float> sum(panels.size());
      HeadLogProb(pool, shape, hidden.data(), shape.hidden, rows, panels.data(), targets.data(),
                  out, out + rows, out + 2 * rows, out + 3 * rows);
      HeadLogProbBackward(pool, shape, hidden.data(), shape.hidden, rows, panels.data(),
                          targets.data(), dlp.data(), out + rows, out + 2 * rows, units,
                          out + 4 * rows, shape.hidden, sum.data());
      UnpackPanels(pool, sum.data(), shape.vocab, shape.hidden, out + 4 * rows + d_floats);
    });
    const int64_t width = 1 + random_.Below(2500);
    const auto x = WideFloats(rows * width, seed + 3), gain = UniformFloats(width, seed + 4);
    const auto dy = WideFloats(rows * width, seed + 5);
    const std::vector<RowRange> ranges = {{0, rows}};
    std::vector<float> norm(static_cast<size_t>(2 * rows * width + rows + width));
    float* n = norm.data();
    reference::RmsNorm(x.data(), rows, width, gain.data(), 1e-5f, n, n + 2 * rows * width);
    reference::RmsNormBackward(x.data(), rows, width, gain.data(), n + 2 * rows * width, dy.data(),
                               n + rows * width, ranges, n + 2 * rows * width + rows);
    Compare("norm", norm, [&](Pool& pool, std::vector<float>& got) {
      float* g = got.data();
      std::fill_n(g + 2 * rows * width + rows, width, 0.0f);
      RmsNorm(pool, x.data(), rows, width, gain.data(), 1e-5f, g, g + 2 * rows * width);
      RmsNormBackward(pool, x.data(), rows, width, gain.data(), g + 2 * rows * width, dy.data(),
                      g + rows * width, ranges, g + 2 * rows * width + rows);
    });
    if (width < 200) continue;
    // The plain sum of squares instead of the lanes' tree.
    std::vector<float> wrong(static_cast<size_t>(rows)), right(wrong.size());
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0.0f;
      for (int64_t i = 0; i < width; ++i) {
        sum = std::fma(x[static_cast<size_t>(r * width + i)], x[static_cast<size_t>(r * width + i)],
                       sum);
      }
      wrong[static_cast<size_t>(r)] = sum;
      right[static_cast<size_t>(r)] =
          reference::RowSumProduct(x.data() + r * width, x.data() + r * width, width);
    }
    if (rows >= 8) MustDiffer(right, wrong);
  }
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
