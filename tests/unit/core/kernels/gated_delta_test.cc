// SPDX-License-Identifier: Apache-2.0
//
// The gated delta rule: kernel = scalar twin by bits on both instruction sets and any thread count,
// decode = prefill = any chunks, and the recurrence in double, gradients by central differences.
#include "core/kernels/gated_delta.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/kernels/pool.h"
#include "core/kernels/reference_gated_delta.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

using tests::CountDifferentBits;

using Floats = std::vector<float>;

struct Operands {
  Floats q, k, v, g, beta, dout;
};

// Keys of length 1, queries shorter, decays from none to complete.
Operands Draw(const DeltaShape& shape, int64_t rows, uint64_t seed) {
  tests::Random random(seed);
  const auto uniform = [&](int64_t n) {
    Floats out(static_cast<size_t>(n));
    for (float& x : out) x = random.Uniform();
    return out;
  };
  Operands o = {uniform(rows * shape.key_heads * shape.key_dim),
                uniform(rows * shape.key_heads * shape.key_dim),
                uniform(rows * shape.value_heads * shape.value_dim),
                uniform(rows * shape.value_heads),
                uniform(rows * shape.value_heads),
                uniform(rows * shape.value_heads * shape.value_dim)};
  const size_t dim = static_cast<size_t>(shape.key_dim);
  for (size_t at = 0; at < o.q.size(); at += dim) {
    float q2 = 0, k2 = 0;
    for (size_t d = 0; d < dim; ++d)
      q2 += o.q[at + d] * o.q[at + d], k2 += o.k[at + d] * o.k[at + d];
    for (size_t d = 0; d < dim; ++d) {
      o.q[at + d] /= std::sqrt(q2 * static_cast<float>(dim)) + 1e-6f;
      o.k[at + d] /= std::sqrt(k2) + 1e-6f;
    }
  }
  for (size_t i = 0; i < o.g.size(); ++i) {
    const float u = std::abs(o.g[i]);
    o.g[i] = u > 0.98f ? -40.0f : -0.2f * u;
    o.beta[i] = 0.5f + 0.49f * o.beta[i];
  }
  return o;
}

struct Outputs {
  Floats out, u, starts, dq, dk, dv, dg, dbeta;
  bool operator==(const Outputs&) const = default;
};

Outputs Sized(const DeltaShape& shape, int64_t rows, int64_t chunks) {
  const auto floats = [](int64_t n) { return Floats(static_cast<size_t>(n), 7.0f); };
  const int64_t values = rows * shape.value_heads * shape.value_dim,
                keys = rows * shape.key_heads * shape.key_dim;
  return {floats(values),
          floats(values),
          floats(chunks * shape.value_heads * shape.key_dim * shape.value_dim),
          floats(keys),
          floats(keys),
          floats(values),
          floats(rows * shape.value_heads),
          floats(rows * shape.value_heads)};
}

// Sequences of these lengths in one call, forward and backward.
Outputs Compute(Pool& pool, const DeltaShape& shape, const std::vector<int64_t>& lengths,
                const Operands& o) {
  std::vector<Floats> states;
  std::vector<DeltaSegment> segments;
  int64_t rows = 0;
  for (const int64_t length : lengths) {
    states.emplace_back(static_cast<size_t>(DeltaStateFloats(shape)), NAN);
    segments.push_back({rows, length, 0, states.back().data()});
    rows += length;
  }
  Outputs r = Sized(shape, rows, DeltaChunks(segments));
  const DeltaSaved saved = {r.u.data(), r.starts.data()};
  DeltaForward(pool, shape, segments, o.q.data(), o.k.data(), o.v.data(), o.g.data(), o.beta.data(),
               r.out.data(), &saved);
  DeltaBackward(pool, shape, segments, o.q.data(), o.k.data(), o.g.data(), o.beta.data(), saved,
                o.dout.data(),
                {r.dq.data(), r.dk.data(), r.dv.data(), r.dg.data(), r.dbeta.data()});
  return r;
}

Outputs RunTwin(const DeltaShape& shape, int64_t rows, const Operands& o) {
  Outputs r = Sized(shape, rows, (rows + kDeltaChunk - 1) / kDeltaChunk);
  const DeltaSaved saved = {r.u.data(), r.starts.data()};
  reference::DeltaForward(shape, rows, o.q.data(), o.k.data(), o.v.data(), o.g.data(),
                          o.beta.data(), r.out.data(), &saved);
  reference::DeltaBackward(shape, rows, o.q.data(), o.k.data(), o.g.data(), o.beta.data(), saved,
                           o.dout.data(),
                           {r.dq.data(), r.dk.data(), r.dv.data(), r.dg.data(), r.dbeta.data()});
  return r;
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

void ExpectEqual(const Outputs& a, const Outputs& b) {
  EXPECT_EQ(CountDifferentBits(a.out, b.out), 0) << "out";
  EXPECT_EQ(CountDifferentBits(a.u, b.u), 0) << "u";
  EXPECT_EQ(CountDifferentBits(a.starts, b.starts), 0) << "starts";
  EXPECT_EQ(CountDifferentBits(a.dq, b.dq), 0) << "dq";
  EXPECT_EQ(CountDifferentBits(a.dk, b.dk), 0) << "dk";
  EXPECT_EQ(CountDifferentBits(a.dv, b.dv), 0) << "dv";
  EXPECT_EQ(CountDifferentBits(a.dg, b.dg), 0) << "dg";
  EXPECT_EQ(CountDifferentBits(a.dbeta, b.dbeta), 0) << "dbeta";
}

TEST(GatedDeltaTest, EqualsScalarTwin) {
  const NumericThread numeric;
  const struct {
    DeltaShape shape;
    int64_t rows;
  } cases[] = {{{1, 1, 16, 16}, 1},
               {{2, 4, 24, 40}, 63},
               {{1, 3, 5, 7}, 64},
               {{1, 1, 70, 33}, 65},
               {{1, 2, 16, 16}, 150}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message()
                 << c.rows << " rows of " << c.shape.key_dim << "x" << c.shape.value_dim);
    const Operands o = Draw(c.shape, c.rows, 1);
    const Outputs twin = RunTwin(c.shape, c.rows, o);
    OnEveryIsa([&](Pool& pool) { ExpectEqual(Compute(pool, c.shape, {c.rows}, o), twin); });
  }
}

// A sequence has its bits whatever shares the call.
TEST(GatedDeltaTest, SequencesDoNotSeeEachOther) {
  const NumericThread numeric;
  const DeltaShape shape = {2, 4, 16, 24};
  const Operands o = Draw(shape, 210, 2);
  Pool pool(3);
  const Outputs together = Compute(pool, shape, {70, 3, 137}, o);
  const auto part = [](const Floats& x, int64_t width, int64_t begin, int64_t end) {
    return Floats(x.begin() + begin * width, x.begin() + end * width);
  };
  const int64_t keys = 2 * 16, values = 4 * 24;
  const auto cut = [&](int64_t begin, int64_t end) {
    return Operands{part(o.q, keys, begin, end),   part(o.k, keys, begin, end),
                    part(o.v, values, begin, end), part(o.g, 4, begin, end),
                    part(o.beta, 4, begin, end),   part(o.dout, values, begin, end)};
  };
  const Outputs alone = Compute(pool, shape, {137}, cut(73, 210));
  EXPECT_EQ(CountDifferentBits(alone.out, part(together.out, values, 73, 210)), 0);
  EXPECT_EQ(CountDifferentBits(alone.dk, part(together.dk, keys, 73, 210)), 0);
  EXPECT_EQ(CountDifferentBits(alone.dg, part(together.dg, 4, 73, 210)), 0);
}

TEST(GatedDeltaTest, DecodeEqualsPrefillEqualsChunks) {
  const NumericThread numeric;
  const DeltaShape shape = {1, 2, 32, 32};
  constexpr int64_t kRows = 300;
  const Operands o = Draw(shape, kRows, 3);
  const Floats whole = RunTwin(shape, kRows, o).out;
  tests::Random random(4);
  for (const int64_t most : {1, 2, 40, 200}) {
    Pool pool(2);
    Floats state(static_cast<size_t>(DeltaStateFloats(shape)), NAN), out(whole.size(), NAN);
    for (int64_t at = 0; at < kRows;) {
      const int64_t count = std::min(kRows - at, random.Between(1, most));
      // Rows of the call begin at 0; the sequence goes on at `at`.
      const DeltaSegment segment = {0, count, at, state.data()};
      DeltaForward(pool, shape, {&segment, 1}, o.q.data() + at * 32, o.k.data() + at * 32,
                   o.v.data() + at * 64, o.g.data() + at * 2, o.beta.data() + at * 2,
                   out.data() + at * 64, nullptr);
      at += count;
    }
    EXPECT_EQ(CountDifferentBits(out, whole), 0) << "at most " << most;
  }
}

// The recurrence as it is usually written, and chunks that begin elsewhere, give other bits.
TEST(GatedDeltaTest, OtherFormsWouldBeSeen) {
  const NumericThread numeric;
  const DeltaShape shape = {1, 1, 32, 32};
  constexpr int64_t kRows = 200;
  const Operands o = Draw(shape, kRows, 5);
  Pool pool(1);
  const Floats ours = Compute(pool, shape, {kRows}, o).out;
  Floats state(32 * 32, 0.0f), recurrent;
  for (size_t t = 0; t < kRows; ++t) {
    const float decay = std::exp(o.g[t]);
    for (float& s : state) s *= decay;
    Floats delta(32);
    for (size_t j = 0; j < 32; ++j) {
      float read = 0;
      for (size_t d = 0; d < 32; ++d) read = std::fma(o.k[t * 32 + d], state[d * 32 + j], read);
      delta[j] = o.beta[t] * (o.v[t * 32 + j] - read);
    }
    for (size_t j = 0; j < 32; ++j) {
      float out = 0;
      for (size_t d = 0; d < 32; ++d) {
        state[d * 32 + j] = std::fma(o.k[t * 32 + d], delta[j], state[d * 32 + j]);
        out = std::fma(o.q[t * 32 + d], state[d * 32 + j], out);
      }
      recurrent.push_back(out);
    }
  }
  EXPECT_GT(CountDifferentBits(recurrent, ours), static_cast<int64_t>(ours.size()) / 4);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(recurrent[i], ours[i], 2e-6);
  // The first 32 tokens put into a state of their own: the chunk's boundary moves to 32.
  Floats moved(static_cast<size_t>(DeltaStateFloats(shape)), 0.0f);
  const DeltaSegment first = {0, 32, 32, moved.data()}, rest = {32, kRows - 32, 64, moved.data()};
  Floats out(ours.size());
  for (const DeltaSegment& segment : {first, rest}) {
    DeltaForward(pool, shape, {&segment, 1}, o.q.data(), o.k.data(), o.v.data(), o.g.data(),
                 o.beta.data(), out.data(), nullptr);
  }
  EXPECT_GT(CountDifferentBits(out, ours), 0);
}

// The recurrence in double: out.
std::vector<double> Recurrence(const DeltaShape& shape, int64_t rows,
                               const std::vector<std::vector<double>>& x) {
  const auto &q = x[0], &k = x[1], &v = x[2], &g = x[3], &beta = x[4];
  const size_t heads = static_cast<size_t>(shape.value_heads),
               dim = static_cast<size_t>(shape.key_dim),
               width = static_cast<size_t>(shape.value_dim),
               ratio = heads / static_cast<size_t>(shape.key_heads);
  std::vector<double> out(static_cast<size_t>(rows) * heads * width);
  for (size_t h = 0; h < heads; ++h) {
    std::vector<double> state(dim * width, 0.0);
    for (size_t t = 0; t < static_cast<size_t>(rows); ++t) {
      const size_t key = (t * static_cast<size_t>(shape.key_heads) + h / ratio) * dim;
      const size_t value = (t * heads + h) * width;
      for (double& s : state) s *= std::exp(g[t * heads + h]);
      for (size_t j = 0; j < width; ++j) {
        double read = 0;
        for (size_t d = 0; d < dim; ++d) read += state[d * width + j] * k[key + d];
        const double delta = beta[t * heads + h] * (v[value + j] - read);
        for (size_t d = 0; d < dim; ++d) state[d * width + j] += k[key + d] * delta;
        for (size_t d = 0; d < dim; ++d) out[value + j] += state[d * width + j] * q[key + d];
      }
    }
  }
  return out;
}

TEST(GatedDeltaTest, AgreesWithTheRecurrenceInDoubleAndItsDerivative) {
  const NumericThread numeric;
  const DeltaShape shape = {1, 2, 8, 6};
  constexpr int64_t kRows = 150;
  const Operands o = Draw(shape, kRows, 6);
  Pool pool(2);
  const Outputs ours = Compute(pool, shape, {kRows}, o);
  std::vector<std::vector<double>> x;
  for (const Floats* v : {&o.q, &o.k, &o.v, &o.g, &o.beta}) x.emplace_back(v->begin(), v->end());
  const std::vector<double> want = Recurrence(shape, kRows, x);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(ours.out[i], want[i], 2e-6);
  const Floats* gradients[] = {&ours.dq, &ours.dk, &ours.dv, &ours.dg, &ours.dbeta};
  tests::Random random(7);
  for (size_t operand = 0; operand < x.size(); ++operand) {
    double squares = 0;
    for (const float d : *gradients[operand]) squares += double{d} * d;
    const double typical = std::sqrt(squares / static_cast<double>(gradients[operand]->size()));
    for (int n = 0; n < 60; ++n) {
      const size_t i = static_cast<size_t>(
          random.Between(0, static_cast<int64_t>(gradients[operand]->size()) - 1));
      double& at = x[operand][i];
      const double before = at;
      double sums[2] = {0, 0};
      for (const int side : {0, 1}) {
        at = before + (side == 0 ? 1e-5 : -1e-5);
        const std::vector<double> out = Recurrence(shape, kRows, x);
        for (size_t j = 0; j < out.size(); ++j) sums[side] += out[j] * o.dout[j];
      }
      at = before;
      EXPECT_NEAR((*gradients[operand])[i], (sums[0] - sums[1]) / 2e-5, 5e-6 * (1 + typical))
          << "operand " << operand << " element " << i;
    }
  }
}

TEST(GatedDeltaTest, RefusesByField) {
  EXPECT_TRUE(ValidateDeltaShape({2, 4, 128, 128}).ok());
  const struct {
    DeltaShape shape;
    const char* field;
  } cases[] = {{{0, 4, 8, 8}, "key_heads"},
               {{2, 3, 8, 8}, "value_heads"},
               {{2, 4, 257, 8}, "key_dim"},
               {{2, 4, 8, 0}, "value_dim"}};
  for (const auto& c : cases) {
    const Status status = ValidateDeltaShape(c.shape);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.ToString().find(c.field), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace titan::kernels
