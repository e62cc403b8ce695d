// SPDX-License-Identifier: Apache-2.0
//
// Attention by bits: kernel = scalar twin on both instruction sets over random shapes and thread
// counts; decode = prefill = chunked prefill over permuted, partly shared and poisoned pages; wrong
// orders differ. By value: the forward and all three gradients against double.
#include "core/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/kernels/order.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

// Sequences packed end to end in one batch, each with its own pages in shuffled places.
struct Batch {
  AttentionShape shape;
  std::vector<int64_t> lengths;
  int64_t rows = 0;
  std::vector<std::vector<int32_t>> pages;
  int64_t num_pages = 0;

  Batch(AttentionShape s, std::vector<int64_t> l, uint64_t seed) : shape(s), lengths(std::move(l)) {
    for (const int64_t n : lengths) {
      rows += n;
      num_pages += NumPages(n);
    }
    std::vector<int32_t> ids(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    tests::Random random(seed);
    for (int64_t i = num_pages - 1; i > 0; --i) std::swap(ids[i], ids[random.Between(0, i)]);
    int64_t next = 0;
    for (const int64_t n : lengths) {
      pages.emplace_back(ids.begin() + next, ids.begin() + next + NumPages(n));
      next += NumPages(n);
    }
  }

  int64_t QWidth() const { return static_cast<int64_t>(shape.num_heads) * shape.head_dim; }
  int64_t KvWidth() const { return static_cast<int64_t>(shape.num_kv_heads) * shape.head_dim; }

  std::vector<Segment> Whole() const {
    std::vector<Segment> segments;
    int64_t row = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      segments.push_back(
          {static_cast<int32_t>(row), static_cast<int32_t>(lengths[s]), 0, pages[s].data()});
      row += lengths[s];
    }
    return segments;
  }
};

struct Tensors {
  tests::Guarded q, k, v, kv, dout;
  Tensors(const Batch& b, uint64_t seed)
      : q(b.rows * b.QWidth(), seed),
        k(b.rows * b.KvWidth(), seed + 1),
        v(b.rows * b.KvWidth(), seed + 2),
        kv(b.num_pages * PageFloats(b.shape), seed + 3),
        dout(b.rows * b.QWidth(), seed + 4) {
    q.FillWide(1), k.FillWide(2), v.FillWide(3), dout.FillWide(4);
    kv.FillPoison();
  }
};

struct Forward {
  tests::Guarded out, max, sum;
  explicit Forward(const Batch& b)
      : out(b.rows * b.QWidth(), 1),
        max(b.rows * b.shape.num_heads, 2),
        sum(b.rows * b.shape.num_heads, 3) {
    out.FillPoison(), max.FillPoison(), sum.FillPoison();
  }
};

std::vector<Batch> Batches() {
  std::vector<Batch> batches;
  const auto add = [&](int heads, int kv_heads, int head_dim, std::vector<int64_t> lengths) {
    batches.emplace_back(
        AttentionShape{heads, kv_heads, head_dim, 0.7f / std::sqrt(static_cast<float>(head_dim))},
        std::move(lengths), batches.size() + 1);
  };
  add(9, 3, 64, {1, 17, 40, 64, 65, 3});
  add(4, 4, 32, {130, 15, 16});
  add(3, 1, 64, {700});
  add(2, 1, 128, {90, 33});
  add(6, 2, 20, {70, 5});
  add(4, 1, 5, {66, 31});
  add(1, 1, 1, {20});
  add(2, 2, 256, {20, 9});
  add(9, 1, 16, {37});
  tests::Random random(99);
  for (int i = 0; i < 6; ++i) {
    const int kv = static_cast<int>(random.Between(1, 3)),
              group = static_cast<int>(random.Between(1, 5));
    std::vector<int64_t> lengths;
    for (int64_t s = random.Between(1, 4); s > 0; --s) lengths.push_back(random.Between(1, 80));
    add(kv * group, kv, static_cast<int>(random.Between(1, 70)), lengths);
  }
  return batches;
}

TEST(AttentionTest, EqualsScalarTwinOnEveryIsaAndThreadCount) {
  const NumericThread numeric;
  int64_t compared = 0;
  for (const Batch& batch : Batches()) {
    Tensors t(batch, 10);
    const std::vector<Segment> segments = batch.Whole();
    reference::WriteKv(batch.shape, t.k.data(), t.v.data(), segments, t.kv.data());
    Forward want(batch);
    reference::AttentionForward(batch.shape, t.q.data(), segments, t.kv.data(), want.out.data(),
                                want.max.data(), want.sum.data());
    tests::Guarded dq(batch.rows * batch.QWidth(), 1), dk(batch.rows * batch.KvWidth(), 2);
    tests::Guarded dv(batch.rows * batch.KvWidth(), 3);
    reference::AttentionBackward(batch.shape, t.q.data(), segments, t.kv.data(), want.out.data(),
                                 t.dout.data(), want.max.data(), want.sum.data(), dq.data(),
                                 dk.data(), dv.data());
    for (const Isa isa : tests::AllIsas()) {
      ASSERT_TRUE(SetIsa(isa).ok());
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(testing::Message()
                     << IsaName(isa) << " threads " << threads << " heads " << batch.shape.num_heads
                     << " dim " << batch.shape.head_dim);
        Pool pool(threads);
        tests::Guarded kv(t.kv.size(), 5);
        kv.FillPoison();
        WriteKv(pool, batch.shape, t.k.data(), t.v.data(), segments, kv.data());
        EXPECT_EQ(tests::CountDifferentBits(kv.span(), t.kv.span()), 0);
        Forward got(batch);
        AttentionForward(pool, batch.shape, t.q.data(), segments, kv.data(), got.out.data(),
                         got.max.data(), got.sum.data());
        EXPECT_EQ(tests::CountDifferentBits(got.out.span(), want.out.span()), 0);
        EXPECT_EQ(tests::CountDifferentBits(got.max.span(), want.max.span()), 0);
        EXPECT_EQ(tests::CountDifferentBits(got.sum.span(), want.sum.span()), 0);
        tests::Guarded dq2(dq.size(), 1), dk2(dk.size(), 2), dv2(dv.size(), 3);
        dq2.FillPoison(), dk2.FillPoison(), dv2.FillPoison();
        AttentionBackward(pool, batch.shape, t.q.data(), segments, kv.data(), got.out.data(),
                          t.dout.data(), got.max.data(), got.sum.data(), dq2.data(), dk2.data(),
                          dv2.data());
        EXPECT_EQ(tests::CountDifferentBits(dq2.span(), dq.span()), 0);
        EXPECT_EQ(tests::CountDifferentBits(dk2.span(), dk.span()), 0);
        EXPECT_EQ(tests::CountDifferentBits(dv2.span(), dv.span()), 0);
        compared += dq.size() + dk.size() + dv.size() + want.out.size();
      }
    }
  }
  EXPECT_GT(compared, 500000);
}

// Runs the batch in pieces: in every round each unfinished sequence advances by some rows.
void RunInPieces(Pool& pool, const Batch& batch, Tensors& t, tests::Random& random, int64_t longest,
                 Forward* out) {
  std::vector<int64_t> done(batch.lengths.size(), 0);
  std::vector<int64_t> first_row(1, 0);
  for (const int64_t n : batch.lengths) first_row.push_back(first_row.back() + n);
  for (bool more = true; more;) {
    more = false;
    std::vector<Segment> segments;
    for (size_t s = 0; s < batch.lengths.size(); ++s) {
      const int64_t left = batch.lengths[s] - done[s];
      if (left == 0) continue;
      const int64_t rows = std::min(left, random.Between(1, longest));
      segments.push_back({static_cast<int32_t>(first_row[s] + done[s]), static_cast<int32_t>(rows),
                          static_cast<int32_t>(done[s]), batch.pages[s].data()});
      done[s] += rows;
      more = true;
    }
    WriteKv(pool, batch.shape, t.k.data(), t.v.data(), segments, t.kv.data());
    AttentionForward(pool, batch.shape, t.q.data(), segments, t.kv.data(), out->out.data(),
                     out->max.data(), out->sum.data());
  }
}

TEST(AttentionTest, DecodeEqualsPrefillEqualsChunks) {
  const NumericThread numeric;
  for (const Isa isa : tests::AllIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (const auto& [heads, kv_heads, head_dim] : {std::tuple{3, 1, 64}, {4, 2, 16}, {2, 2, 40}}) {
      const AttentionShape shape{heads, kv_heads, head_dim, 0.2f};
      Batch batch(shape, {600, 31, 64, 1050}, 5);
      Pool pool(2);
      Tensors t(batch, 20);
      WriteKv(pool, shape, t.k.data(), t.v.data(), batch.Whole(), t.kv.data());
      Forward whole(batch);
      AttentionForward(pool, shape, t.q.data(), batch.Whole(), t.kv.data(), whole.out.data(),
                       whole.max.data(), whole.sum.data());
      tests::Random random(6);
      for (const int64_t longest : {1, 7, 300}) {
        Batch other(shape, batch.lengths, 70 + longest);  // other page places
        Tensors u(other, 20);
        Forward pieces(other);
        RunInPieces(pool, other, u, random, longest, &pieces);
        EXPECT_EQ(tests::CountDifferentBits(pieces.out.span(), whole.out.span()), 0) << longest;
        EXPECT_EQ(tests::CountDifferentBits(pieces.max.span(), whole.max.span()), 0) << longest;
        EXPECT_EQ(tests::CountDifferentBits(pieces.sum.span(), whole.sum.span()), 0) << longest;
      }
    }
  }
}

TEST(AttentionTest, SharedPrefixPagesGiveTheBitsOfOwnCopies) {
  const NumericThread numeric;
  const AttentionShape shape{6, 2, 32, 0.3f};
  constexpr int64_t kPrefix = 48, kTotal = 75;  // three whole pages are shared
  Batch batch(shape, {kTotal, kTotal}, 8);
  Tensors t(batch, 30);
  // The second sequence starts with the first one's tokens.
  std::copy_n(t.q.data(), kPrefix * batch.QWidth(), t.q.data() + kTotal * batch.QWidth());
  std::copy_n(t.k.data(), kPrefix * batch.KvWidth(), t.k.data() + kTotal * batch.KvWidth());
  std::copy_n(t.v.data(), kPrefix * batch.KvWidth(), t.v.data() + kTotal * batch.KvWidth());
  Pool pool(2);
  Forward own(batch), shared(batch);
  WriteKv(pool, shape, t.k.data(), t.v.data(), batch.Whole(), t.kv.data());
  AttentionForward(pool, shape, t.q.data(), batch.Whole(), t.kv.data(), own.out.data(), nullptr,
                   nullptr);
  t.kv.FillPoison();
  std::copy_n(batch.pages[0].begin(), kPrefix / kPageTokens, batch.pages[1].begin());
  std::vector<Segment> segments = batch.Whole();
  segments[1] = {kTotal + kPrefix, kTotal - kPrefix, kPrefix, batch.pages[1].data()};
  WriteKv(pool, shape, t.k.data(), t.v.data(), segments, t.kv.data());
  AttentionForward(pool, shape, t.q.data(), segments, t.kv.data(), shared.out.data(), nullptr,
                   nullptr);
  const int64_t from = (kTotal + kPrefix) * batch.QWidth();
  EXPECT_EQ(
      tests::CountDifferentBits(own.out.span().subspan(from), shared.out.span().subspan(from)), 0);
  EXPECT_EQ(tests::CountDifferentBits(own.out.span().first(kTotal * batch.QWidth()),
                                      shared.out.span().first(kTotal * batch.QWidth())),
            0);
}

// Softmax attention of one head in double: outputs, and gradients by the analytic formulas.
struct Exact {
  std::vector<double> out, dq, dk, dv;
};

Exact ExactAttention(const Batch& b, Tensors& t) {
  const int64_t n = b.rows, d = b.shape.head_dim, group = b.shape.num_heads / b.shape.num_kv_heads;
  Exact e;
  e.out.assign(n * b.QWidth(), 0.0), e.dq = e.out;
  e.dk.assign(n * b.KvWidth(), 0.0), e.dv = e.dk;
  for (int64_t h = 0; h < b.shape.num_heads; ++h) {
    const auto q_at = [&](int64_t i) { return i * b.QWidth() + h * d; };
    const auto k_at = [&](int64_t j) { return j * b.KvWidth() + h / group * d; };
    for (int64_t i = 0; i < n; ++i) {
      std::vector<double> p(i + 1), dp(i + 1, 0.0);
      double max = -std::numeric_limits<double>::infinity(), sum = 0.0, mean = 0.0;
      for (int64_t j = 0; j <= i; ++j) {
        double s = 0.0;
        for (int64_t c = 0; c < d; ++c)
          s += double{t.q.data()[q_at(i) + c]} * t.k.data()[k_at(j) + c];
        p[j] = s * b.shape.scale;
        max = std::max(max, p[j]);
      }
      for (double& value : p) value = std::exp(value - max), sum += value;
      for (int64_t j = 0; j <= i; ++j) {
        p[j] /= sum;
        for (int64_t c = 0; c < d; ++c) {
          const double dout = t.dout.data()[q_at(i) + c], v = t.v.data()[k_at(j) + c];
          e.out[q_at(i) + c] += p[j] * v;
          e.dv[k_at(j) + c] += p[j] * dout;
          dp[j] += dout * v;
        }
        mean += p[j] * dp[j];
      }
      for (int64_t j = 0; j <= i; ++j) {
        const double ds = p[j] * (dp[j] - mean) * b.shape.scale;
        for (int64_t c = 0; c < d; ++c) {
          e.dq[q_at(i) + c] += ds * t.k.data()[k_at(j) + c];
          e.dk[k_at(j) + c] += ds * t.q.data()[q_at(i) + c];
        }
      }
    }
  }
  return e;
}

double RelativeError(std::span<const float> got, const std::vector<double>& want) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

TEST(AttentionTest, OutputsAndGradientsAgreeWithDouble) {
  const NumericThread numeric;
  Batch batch(AttentionShape{6, 2, 32, 0.25f}, {600}, 3);
  Tensors t(batch, 40);
  const Exact exact = ExactAttention(batch, t);
  Pool pool(2);
  Forward f(batch);
  tests::Guarded dq(f.out.size(), 1), dk(t.k.size(), 2), dv(t.v.size(), 3);
  WriteKv(pool, batch.shape, t.k.data(), t.v.data(), batch.Whole(), t.kv.data());
  AttentionForward(pool, batch.shape, t.q.data(), batch.Whole(), t.kv.data(), f.out.data(),
                   f.max.data(), f.sum.data());
  AttentionBackward(pool, batch.shape, t.q.data(), batch.Whole(), t.kv.data(), f.out.data(),
                    t.dout.data(), f.max.data(), f.sum.data(), dq.data(), dk.data(), dv.data());
  EXPECT_LT(RelativeError(f.out.span(), exact.out), 5e-7);
  EXPECT_LT(RelativeError(dq.span(), exact.dq), 3e-6);
  EXPECT_LT(RelativeError(dk.span(), exact.dk), 3e-6);
  EXPECT_LT(RelativeError(dv.span(), exact.dv), 1e-6);
}

TEST(AttentionTest, AnOrderThatDependsOnTheBatchWouldBeSeen) {
  // One sequence whose block grid starts at another key: what a cache without absolute blocks would
  // do.
  const NumericThread numeric;
  const AttentionShape shape{1, 1, 16, 0.25f};
  Batch batch(shape, {200}, 4);
  Tensors t(batch, 50);
  Pool pool(1);
  Forward f(batch);
  WriteKv(pool, shape, t.k.data(), t.v.data(), batch.Whole(), t.kv.data());
  AttentionForward(pool, shape, t.q.data(), batch.Whole(), t.kv.data(), f.out.data(), nullptr,
                   nullptr);
  // The same keys and values in another order of positions: equal in exact arithmetic for the last
  // row.
  std::vector<float> k(t.k.size()), v(t.v.size());
  for (int64_t j = 0; j < 200; ++j) {
    std::copy_n(t.k.data() + j * 16, 16, k.data() + (j + 37) % 200 * 16);
    std::copy_n(t.v.data() + j * 16, 16, v.data() + (j + 37) % 200 * 16);
  }
  Forward rotated(batch);
  WriteKv(pool, shape, k.data(), v.data(), batch.Whole(), t.kv.data());
  AttentionForward(pool, shape, t.q.data(), batch.Whole(), t.kv.data(), rotated.out.data(), nullptr,
                   nullptr);
  int64_t differing = 0;
  for (int64_t d = 0; d < 16; ++d) {
    const float a = f.out.data()[199 * 16 + d], b = rotated.out.data()[199 * 16 + d];
    EXPECT_NEAR(a, b, 1e-5);
    differing += tests::BitsOf(a) != tests::BitsOf(b);
  }
  EXPECT_GT(differing, 4);
}

}  // namespace
}  // namespace titan::kernels
