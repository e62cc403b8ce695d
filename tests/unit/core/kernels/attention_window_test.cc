// SPDX-License-Identifier: Apache-2.0
//
// Sliding windows and sinks: kernel = scalar twin by bits, also over a shared prefix; decode =
// prefill = chunks; values and gradients in double; a window that covers everything and a sink that
// weighs nothing change no bit, others do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "core/kernels/attention.h"
#include "core/kernels/elementary.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

using tests::CountDifferentBits;

using Floats = std::vector<float>;

Floats Wide(int64_t n, uint64_t seed, float scale = 1.0f) {
  tests::Random random(seed);
  Floats out(static_cast<size_t>(n));
  for (float& x : out) x = random.Wide() * scale;
  return out;
}

void OnEveryIsa(const std::function<void(Pool&)>& body) {
  for (const Isa isa : tests::AllIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (const int threads : {1, 4}) {
      SCOPED_TRACE(testing::Message() << IsaName(isa) << " threads " << threads);
      Pool pool(threads);
      body(pool);
    }
  }
  ASSERT_TRUE(SetIsa("auto").ok());
}

// A call: segments with their pages, operands, and what comes out.
struct Call {
  AttentionShape shape;
  std::vector<Segment> segments;
  std::vector<std::vector<int32_t>> pages;
  int64_t rows = 0;
  Floats q, k, v, dout;
  std::vector<RowRange> units;

  int64_t q_width() const { return int64_t{shape.num_heads} * shape.head_dim; }
  int64_t kv_width() const { return int64_t{shape.num_kv_heads} * shape.head_dim; }
  int64_t num_pages() const {
    int32_t most = 0;
    for (const auto& p : pages) most = std::max(most, *std::max_element(p.begin(), p.end()));
    return most + 1;
  }
  void Draw(uint64_t seed) {
    q = Wide(rows * q_width(), seed), k = Wide(rows * kv_width(), seed + 1);
    v = Wide(rows * kv_width(), seed + 2), dout = Wide(rows * q_width(), seed + 3);
    for (int64_t at = 0; at < rows; at += 50) units.push_back({at, std::min(rows, at + 50)});
  }
};

Call Whole(const AttentionShape& shape, const std::vector<int32_t>& lengths, uint64_t seed) {
  Call call;
  call.shape = shape;
  int32_t page = 0;
  for (const int32_t n : lengths) {
    call.pages.emplace_back(static_cast<size_t>(NumPages(n)));
    std::iota(call.pages.back().rbegin(), call.pages.back().rend(), page);
    page += static_cast<int32_t>(NumPages(n));
  }
  for (size_t s = 0; s < lengths.size(); ++s) {
    call.segments.push_back({static_cast<int32_t>(call.rows), lengths[s], 0, call.pages[s].data()});
    call.rows += lengths[s];
  }
  call.Draw(seed);
  return call;
}

// Three continuations of one prefix, then the prefix.
Call Shared(const AttentionShape& shape, int32_t prefix, uint64_t seed) {
  Call call;
  call.shape = shape;
  const int32_t full = prefix / static_cast<int32_t>(kPageTokens);
  int32_t next = static_cast<int32_t>(NumPages(prefix));
  const int32_t lengths[] = {40, 1, 90};
  for (const int32_t n : lengths) {
    std::vector<int32_t> pages(static_cast<size_t>(NumPages(prefix + n)));
    std::iota(pages.begin(), pages.begin() + full, 0);
    std::iota(pages.begin() + full, pages.end(), next);
    next += static_cast<int32_t>(pages.size()) - full;
    call.pages.push_back(pages);
  }
  call.pages.emplace_back(static_cast<size_t>(NumPages(prefix)));
  std::iota(call.pages.back().begin(), call.pages.back().end(), 0);
  for (size_t s = 0; s < 3; ++s) {
    call.segments.push_back(
        {static_cast<int32_t>(call.rows), lengths[s], prefix, call.pages[s].data(), 3});
    call.rows += lengths[s];
  }
  call.segments.push_back({static_cast<int32_t>(call.rows), prefix, 0, call.pages[3].data()});
  call.rows += prefix;
  call.Draw(seed);
  return call;
}

struct Outputs {
  Floats out, max, sum, dq, dk, dv, dsinks;
};

Outputs Compute(Pool* pool, const Call& c) {
  const size_t rows_heads = static_cast<size_t>(c.rows * c.shape.num_heads);
  Outputs r = {Floats(c.q.size()),
               Floats(rows_heads),
               Floats(rows_heads),
               Floats(c.q.size()),
               Floats(c.k.size()),
               Floats(c.v.size()),
               Floats(static_cast<size_t>(c.shape.num_heads), 0.5f)};
  Floats cache(static_cast<size_t>(c.num_pages() * PageFloats(c.shape)), NAN);
  if (pool == nullptr) {
    reference::WriteKv(c.shape, c.k.data(), c.v.data(), c.segments, cache.data());
    reference::AttentionForward(c.shape, c.q.data(), c.segments, cache.data(), r.out.data(),
                                r.max.data(), r.sum.data());
    reference::AttentionBackward(c.shape, c.q.data(), c.segments, cache.data(), r.out.data(),
                                 c.dout.data(), r.max.data(), r.sum.data(), r.dq.data(),
                                 r.dk.data(), r.dv.data());
    if (c.shape.sinks != nullptr) {
      reference::SinkGradient(c.shape, r.out.data(), c.dout.data(), r.max.data(), r.sum.data(),
                              c.units, r.dsinks.data());
    }
    return r;
  }
  WriteKv(*pool, c.shape, c.k.data(), c.v.data(), c.segments, cache.data());
  AttentionForward(*pool, c.shape, c.q.data(), c.segments, cache.data(), r.out.data(), r.max.data(),
                   r.sum.data());
  AttentionBackward(*pool, c.shape, c.q.data(), c.segments, cache.data(), r.out.data(),
                    c.dout.data(), r.max.data(), r.sum.data(), r.dq.data(), r.dk.data(),
                    r.dv.data());
  if (c.shape.sinks != nullptr) {
    SinkGradient(*pool, c.shape, r.out.data(), c.dout.data(), r.max.data(), r.sum.data(), c.units,
                 r.dsinks.data());
  }
  return r;
}

void ExpectEqual(const Outputs& a, const Outputs& b) {
  EXPECT_EQ(CountDifferentBits(a.out, b.out), 0) << "out";
  EXPECT_EQ(CountDifferentBits(a.max, b.max), 0) << "row_max";
  EXPECT_EQ(CountDifferentBits(a.sum, b.sum), 0) << "row_sum";
  EXPECT_EQ(CountDifferentBits(a.dq, b.dq), 0) << "dq";
  EXPECT_EQ(CountDifferentBits(a.dk, b.dk), 0) << "dk";
  EXPECT_EQ(CountDifferentBits(a.dv, b.dv), 0) << "dv";
  EXPECT_EQ(CountDifferentBits(a.dsinks, b.dsinks), 0) << "dsinks";
}

const float kSinks[] = {0.4f, -1.5f, 2.0f, 0.0f, -0.1f, 1.0f};

AttentionShape ShapeOf(int heads, int kv_heads, int head_dim, int64_t window, bool sinks) {
  return {heads,    kv_heads,
          head_dim, 0.7f / std::sqrt(static_cast<float>(head_dim)),
          window,   sinks ? kSinks : nullptr};
}

TEST(AttentionWindowTest, EqualsScalarTwin) {
  const NumericThread numeric;
  const struct {
    AttentionShape shape;
    std::vector<int32_t> lengths;
  } cases[] = {{ShapeOf(6, 2, 16, 1, false), {70, 3}},    {ShapeOf(4, 1, 20, 5, true), {130}},
               {ShapeOf(3, 1, 8, 63, false), {200, 64}},  {ShapeOf(2, 2, 32, 64, true), {65, 129}},
               {ShapeOf(4, 2, 16, 100, true), {700}},     {ShapeOf(1, 1, 8, 512, false), {1100}},
               {ShapeOf(2, 1, 8, 530, true), {1100, 20}}, {ShapeOf(4, 2, 16, 0, true), {600, 33}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << "window " << c.shape.window);
    const Call call = Whole(c.shape, c.lengths, 1);
    const Outputs twin = Compute(nullptr, call);
    OnEveryIsa([&](Pool& pool) { ExpectEqual(Compute(&pool, call), twin); });
  }
}

TEST(AttentionWindowTest, EqualsScalarTwinOverASharedPrefix) {
  const NumericThread numeric;
  for (const int64_t window : {0, 7, 60, 120}) {
    for (const int32_t prefix : {32, 75}) {
      SCOPED_TRACE(testing::Message() << "window " << window << " prefix " << prefix);
      const Call call = Shared(ShapeOf(4, 2, 16, window, true), prefix, 2);
      const Outputs twin = Compute(nullptr, call);
      OnEveryIsa([&](Pool& pool) { ExpectEqual(Compute(&pool, call), twin); });
    }
  }
}

TEST(AttentionWindowTest, DecodeEqualsPrefillEqualsChunks) {
  const NumericThread numeric;
  const AttentionShape shape = ShapeOf(4, 2, 16, 70, true);
  const Call call = Whole(shape, {620}, 3);
  Pool pool(2);
  const Floats whole = Compute(&pool, call).out;
  tests::Random random(4);
  for (const int64_t most : {1, 33, 300}) {
    Floats cache(static_cast<size_t>(call.num_pages() * PageFloats(shape)), NAN), out(whole.size());
    for (int64_t at = 0; at < call.rows;) {
      const int64_t count = std::min(call.rows - at, random.Between(1, most));
      const Segment segment = {0, static_cast<int32_t>(count), static_cast<int32_t>(at),
                               call.pages[0].data()};
      WriteKv(pool, shape, call.k.data() + at * call.kv_width(),
              call.v.data() + at * call.kv_width(), {&segment, 1}, cache.data());
      // Pages wholly before the window are not read.
      const int64_t dead = FirstVisible(shape, at) / kPageTokens;
      for (int64_t p = 0; p < dead; ++p) {
        std::fill_n(cache.begin() + call.pages[0][static_cast<size_t>(p)] * PageFloats(shape),
                    PageFloats(shape), NAN);
      }
      AttentionForward(pool, shape, call.q.data() + at * call.q_width(), {&segment, 1},
                       cache.data(), out.data() + at * call.q_width(), nullptr, nullptr);
      at += count;
    }
    EXPECT_EQ(CountDifferentBits(out, whole), 0) << "at most " << most;
  }
}

// What must not matter does not, and what must does.
TEST(AttentionWindowTest, WideWindowsAndWeightlessSinksChangeNothing) {
  const NumericThread numeric;
  Pool pool(2);
  const float weightless[] = {-3e38f, -3e38f, -3e38f, -3e38f};
  Call call = Whole(ShapeOf(4, 2, 16, 0, false), {300}, 5);
  const Outputs plain = Compute(&pool, call);
  call.shape.window = 300;
  ExpectEqual(Compute(&pool, call), plain);
  call.shape.window = 299;
  const Outputs narrow = Compute(&pool, call);
  EXPECT_GT(CountDifferentBits(narrow.out, plain.out), 0);
  EXPECT_LT(CountDifferentBits(narrow.out, plain.out), call.q_width() + 1);  // the last row alone
  call.shape.window = 0;
  call.shape.sinks = weightless;
  const Outputs with = Compute(&pool, call);
  EXPECT_EQ(CountDifferentBits(with.out, plain.out), 0);
  EXPECT_EQ(CountDifferentBits(with.dk, plain.dk), 0);
  EXPECT_EQ(with.dsinks, Floats(4, 0.5f));
  call.shape.sinks = kSinks;
  EXPECT_GT(CountDifferentBits(Compute(&pool, call).out, plain.out), 0);
}

// A sink taken first, as if it were a key before all others, gives other sums.
TEST(AttentionWindowTest, ASinkMergedElsewhereWouldBeSeen) {
  const NumericThread numeric;
  const float sink = 3.0f;  // above many scores, below others
  Call call = Whole({1, 1, 8, 0.35f, 0, &sink}, {64}, 6);
  Pool pool(1);
  const Outputs ours = Compute(&pool, call);
  int64_t differing = 0;
  for (int64_t t = 0; t < call.rows; ++t) {
    float lanes[kKeyBlock] = {}, max = sink;
    for (int64_t j = 0; j <= t; ++j) {
      float score = 0.0f;
      for (int64_t d = 0; d < 8; ++d) {
        score = std::fma(call.q[static_cast<size_t>(t * 8 + d)] * call.shape.scale,
                         call.k[static_cast<size_t>(j * 8 + d)], score);
      }
      lanes[j] = score;
      max = std::max(max, score);
    }
    for (int64_t j = 0; j < kKeyBlock; ++j) lanes[j] = j <= t ? DExp(lanes[j] - max) : 0.0f;
    for (int64_t h = kKeyBlock / 2; h > 0; h /= 2) {
      for (int64_t j = 0; j < h; ++j) lanes[j] = lanes[j] + lanes[j + h];
    }
    const float first = std::fma(1.0f, DExp(sink - max), lanes[0]);
    EXPECT_NEAR(first, ours.sum[static_cast<size_t>(t)], 1e-5f * first);
    differing += first != ours.sum[static_cast<size_t>(t)];
  }
  EXPECT_GT(differing, 0);
}

std::vector<double> InDouble(const Call& c, const std::vector<double>& q,
                             const std::vector<double>& k, const std::vector<double>& v,
                             const std::vector<double>& sinks) {
  const int64_t dim = c.shape.head_dim, heads = c.shape.num_heads, kv = c.shape.num_kv_heads;
  std::vector<double> out(q.size(), 0.0);
  const auto at = [](const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; };
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kh = h / (heads / kv);
      std::vector<double> p;
      double max = at(sinks, h), sum = 0;
      const int64_t lowest = std::max<int64_t>(0, t + 1 - c.shape.window);
      for (int64_t j = lowest; j <= t; ++j) {
        double s = 0;
        for (int64_t d = 0; d < dim; ++d) {
          s += at(q, (t * heads + h) * dim + d) * at(k, (j * kv + kh) * dim + d);
        }
        p.push_back(s * c.shape.scale);
        max = std::max(max, p.back());
      }
      for (double& s : p) sum += s = std::exp(s - max);
      sum += std::exp(at(sinks, h) - max);
      for (int64_t j = lowest; j <= t; ++j) {
        for (int64_t d = 0; d < dim; ++d) {
          out[static_cast<size_t>((t * heads + h) * dim + d)] +=
              p[static_cast<size_t>(j - lowest)] / sum * at(v, (j * kv + kh) * dim + d);
        }
      }
    }
  }
  return out;
}

TEST(AttentionWindowTest, OutputsAndGradientsAgreeWithDouble) {
  const NumericThread numeric;
  Call call = Whole(ShapeOf(4, 2, 8, 20, true), {90}, 7);
  for (Floats* x : {&call.q, &call.k}) {
    for (float& value : *x) value *= 0.5f;
  }
  Pool pool(2);
  const Outputs ours = Compute(&pool, call);
  std::vector<std::vector<double>> x;
  for (const Floats* f : {&call.q, &call.k, &call.v}) x.emplace_back(f->begin(), f->end());
  x.emplace_back(kSinks, kSinks + 4);
  const std::vector<double> want = InDouble(call, x[0], x[1], x[2], x[3]);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(ours.out[i], want[i], 4e-6 * (1 + std::abs(want[i])));
  }
  const Floats* gradients[] = {&ours.dq, &ours.dk, &ours.dv, &ours.dsinks};
  tests::Random random(8);
  for (size_t operand = 0; operand < 4; ++operand) {
    for (int n = 0; n < (operand == 3 ? 4 : 40); ++n) {
      const size_t i =
          operand == 3
              ? static_cast<size_t>(n)
              : static_cast<size_t>(random.Between(0, static_cast<int64_t>(x[operand].size()) - 1));
      double& at = x[operand][i];
      const double before = at;
      double sums[2] = {0, 0};
      for (const int side : {0, 1}) {
        at = before + (side == 0 ? 1e-5 : -1e-5);
        const std::vector<double> out = InDouble(call, x[0], x[1], x[2], x[3]);
        for (size_t j = 0; j < out.size(); ++j) sums[side] += out[j] * call.dout[j];
      }
      at = before;
      const double derivative = (sums[0] - sums[1]) / 2e-5;
      const double got = (*gradients[operand])[i] - (operand == 3 ? 0.5 : 0.0);
      EXPECT_NEAR(got, derivative, 2e-5 * (1 + std::abs(derivative)))
          << "operand " << operand << " element " << i;
    }
  }
}

}  // namespace
}  // namespace titan::kernels
