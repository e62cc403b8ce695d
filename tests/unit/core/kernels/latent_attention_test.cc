// SPDX-License-Identifier: Apache-2.0
//
// Latent attention: kernel = scalar twin by bits, decode = prefill = chunks over any pages, and
// with its two linears it is multi-head latent attention in double (keys and values expanded
// there), gradients by central differences. Expanding in binary32 gives other bits. Its two linears
// of each head equal their scalar twin in the three modes.
#include "core/kernels/latent_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/kernels/bf16.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_latent_attention.h"
#include "core/kernels/reference_linear.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

using tests::CountDifferentBits;

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Floats Uniform(int64_t n, uint64_t seed, float scale = 1.0f) {
  tests::Random random(seed);
  Floats out(static_cast<size_t>(n));
  for (float& x : out) x = random.Uniform() * scale;
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

// Pages of a cache whose ids run backwards, unwritten slots poisoned.
struct Cache {
  Cache(const LatentShape& shape, int64_t positions)
      : memory(static_cast<size_t>(NumPages(positions) * LatentPageFloats(shape)), NAN) {
    for (int64_t p = NumPages(positions) - 1; p >= 0; --p) pages.push_back(static_cast<int32_t>(p));
  }
  Floats memory;
  std::vector<int32_t> pages;
};

struct Outputs {
  Floats out, row_max, row_sum, dq, dcache;
};

Outputs Compute(Pool& pool, const LatentShape& shape, int64_t rows, const Floats& q,
                const Floats& cached, const Floats& dout) {
  Cache cache(shape, rows);
  const Segment segment = {.first_row = 0,
                           .num_rows = static_cast<int32_t>(rows),
                           .first_position = 0,
                           .pages = cache.pages.data()};
  Outputs r = {Floats(dout.size()), Floats(static_cast<size_t>(rows * shape.heads)),
               Floats(static_cast<size_t>(rows * shape.heads)), Floats(q.size()),
               Floats(cached.size())};
  WriteLatent(pool, shape, cached.data(), {&segment, 1}, cache.memory.data());
  LatentAttentionForward(pool, shape, q.data(), {&segment, 1}, cache.memory.data(), r.out.data(),
                         r.row_max.data(), r.row_sum.data());
  LatentAttentionBackward(pool, shape, q.data(), {&segment, 1}, cache.memory.data(), r.out.data(),
                          dout.data(), r.row_max.data(), r.row_sum.data(), r.dq.data(),
                          r.dcache.data());
  return r;
}

TEST(LatentAttentionTest, EqualsScalarTwin) {
  const NumericThread numeric;
  const struct {
    LatentShape shape;
    int64_t rows;
  } cases[] = {{{2, 24, 8, 0.3f}, 1},
               {{3, 16, 5, 0.3f}, 67},
               {{1, 33, 0, 0.2f}, 130},
               {{2, 8, 4, 0.5f}, 600}};  // two segments of keys
  for (const auto& [shape, rows] : cases) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << shape.width());
    const Floats q = Uniform(rows * shape.heads * shape.width(), 1, 3.0f),
                 cached = Uniform(rows * shape.width(), 2, 2.0f),
                 dout = Uniform(rows * shape.heads * shape.latent, 3);
    Floats out(dout.size()), max(static_cast<size_t>(rows * shape.heads)), sum(max.size()),
        dq(q.size()), dcache(cached.size());
    reference::LatentAttentionForward(shape, rows, q.data(), cached.data(), out.data(), max.data(),
                                      sum.data());
    reference::LatentAttentionBackward(shape, rows, q.data(), cached.data(), out.data(),
                                       dout.data(), max.data(), sum.data(), dq.data(),
                                       dcache.data());
    OnEveryIsa([&](Pool& pool) {
      const Outputs r = Compute(pool, shape, rows, q, cached, dout);
      EXPECT_EQ(CountDifferentBits(r.out, out), 0);
      EXPECT_EQ(CountDifferentBits(r.row_max, max), 0);
      EXPECT_EQ(CountDifferentBits(r.row_sum, sum), 0);
      EXPECT_EQ(CountDifferentBits(r.dq, dq), 0);
      EXPECT_EQ(CountDifferentBits(r.dcache, dcache), 0);
    });
  }
}

TEST(LatentAttentionTest, DecodeEqualsPrefillEqualsChunks) {
  const NumericThread numeric;
  const LatentShape shape = {2, 20, 6, 0.3f};
  constexpr int64_t kRows = 560;
  const int64_t width = shape.width();
  const Floats q = Uniform(kRows * 2 * width, 1, 3.0f), cached = Uniform(kRows * width, 2, 2.0f),
               dout = Uniform(kRows * 2 * shape.latent, 3);
  Pool pool(2);
  const Floats whole = Compute(pool, shape, kRows, q, cached, dout).out;
  tests::Random random(4);
  for (const int64_t most : {1, 30, 300}) {
    Cache cache(shape, kRows);
    Floats out(whole.size());
    for (int64_t at = 0; at < kRows;) {
      const int64_t count = std::min(kRows - at, random.Between(1, most));
      const Segment segment = {.first_row = 0,
                               .num_rows = static_cast<int32_t>(count),
                               .first_position = static_cast<int32_t>(at),
                               .pages = cache.pages.data()};
      WriteLatent(pool, shape, cached.data() + at * width, {&segment, 1}, cache.memory.data());
      LatentAttentionForward(pool, shape, q.data() + at * 2 * width, {&segment, 1},
                             cache.memory.data(), out.data() + at * 2 * shape.latent, nullptr,
                             nullptr);
      at += count;
    }
    EXPECT_EQ(CountDifferentBits(out, whole), 0) << "at most " << most;
  }
}

// A whole layer between its projections: queries [n][nope | rope], cached [latent | rope], kv_b.
struct Layer {
  int64_t heads = 2, nope = 6, rope = 4, latent = 10, value = 5, rows = 40;
  LatentShape shape() const {
    return {heads, latent, rope, 1.0f / std::sqrt(static_cast<float>(nope + rope))};
  }
};

// out [rows][heads * value] in double, keys and values expanded.
Doubles Expanded(const Layer& l, const Doubles& q, const Doubles& cached, const Doubles& kv_b) {
  const auto at = [](const Doubles& x, int64_t i) { return x[static_cast<size_t>(i)]; };
  const int64_t width = l.latent + l.rope, query = l.nope + l.rope, rows_of_head = l.nope + l.value;
  Doubles out(static_cast<size_t>(l.rows * l.heads * l.value));
  for (int64_t h = 0; h < l.heads; ++h) {
    const auto expand = [&](int64_t j, int64_t row) {
      double sum = 0;
      for (int64_t r = 0; r < l.latent; ++r) {
        sum += at(kv_b, (h * rows_of_head + row) * l.latent + r) * at(cached, j * width + r);
      }
      return sum;
    };
    for (int64_t t = 0; t < l.rows; ++t) {
      Doubles p;
      double total = 0;
      for (int64_t j = 0; j <= t; ++j) {
        double s = 0;
        const int64_t q_at = (t * l.heads + h) * query;
        for (int64_t i = 0; i < l.nope; ++i) s += at(q, q_at + i) * expand(j, i);
        for (int64_t i = 0; i < l.rope; ++i) {
          s += at(q, q_at + l.nope + i) * at(cached, j * width + l.latent + i);
        }
        p.push_back(std::exp(s / std::sqrt(static_cast<double>(query))));
        total += p.back();
      }
      for (int64_t j = 0; j <= t; ++j) {
        for (int64_t i = 0; i < l.value; ++i) {
          out[static_cast<size_t>((t * l.heads + h) * l.value + i)] +=
              p[static_cast<size_t>(j)] / total * expand(j, l.nope + i);
        }
      }
    }
  }
  return out;
}

TEST(LatentAttentionTest, AgreesWithExpandedAttentionInDoubleAndItsDerivative) {
  const NumericThread numeric;
  const Layer l;
  const LatentShape shape = l.shape();
  const int64_t width = shape.width(), query = l.nope + l.rope, rows_of_head = l.nope + l.value;
  const Floats q = Uniform(l.rows * l.heads * query, 1), cached = Uniform(l.rows * width, 2),
               kv_b = Uniform(l.heads * rows_of_head * l.latent, 3),
               dout = Uniform(l.rows * l.heads * l.value, 4);
  Pool pool(2);
  // The two parts of kv_b, by head: [nope][latent] transposed for the query, [value][latent].
  std::vector<Floats> absorb, absorb_back, expand, expand_back;
  std::vector<ConstPanels> absorb_panels, absorb_back_panels, expand_panels, expand_back_panels;
  for (int64_t h = 0; h < l.heads; ++h) {
    const float* rows = kv_b.data() + h * rows_of_head * l.latent;
    absorb_back.emplace_back(static_cast<size_t>(PanelFloats(l.nope, l.latent)));
    PackPanels(pool, rows, l.nope, l.latent, absorb_back.back().data());
    absorb.emplace_back(static_cast<size_t>(PanelFloats(l.latent, l.nope)));
    TransposePanels(pool, absorb_back.back().data(), l.nope, l.latent, absorb.back().data());
    expand.emplace_back(static_cast<size_t>(PanelFloats(l.value, l.latent)));
    PackPanels(pool, rows + l.nope * l.latent, l.value, l.latent, expand.back().data());
    expand_back.emplace_back(static_cast<size_t>(PanelFloats(l.latent, l.value)));
    TransposePanels(pool, expand.back().data(), l.value, l.latent, expand_back.back().data());
  }
  for (size_t h = 0; h < absorb.size(); ++h) {
    absorb_panels.push_back(absorb[h].data());
    absorb_back_panels.push_back(absorb_back[h].data());
    expand_panels.push_back(expand[h].data());
    expand_back_panels.push_back(expand_back[h].data());
  }
  Floats q_nope, q_rope;
  for (int64_t at = 0; at < l.rows * l.heads; ++at) {
    q_nope.insert(q_nope.end(), q.begin() + at * query, q.begin() + at * query + l.nope);
    q_rope.insert(q_rope.end(), q.begin() + at * query + l.nope, q.begin() + (at + 1) * query);
  }
  Floats latent_query(static_cast<size_t>(l.rows * l.heads * l.latent)), all_query;
  PerHeadLinear(pool, q_nope.data(), l.rows, absorb_panels, l.latent, l.nope, 1,
                latent_query.data());
  for (int64_t at = 0; at < l.rows * l.heads; ++at) {
    all_query.insert(all_query.end(), latent_query.begin() + at * l.latent,
                     latent_query.begin() + (at + 1) * l.latent);
    all_query.insert(all_query.end(), q_rope.begin() + at * l.rope,
                     q_rope.begin() + (at + 1) * l.rope);
  }
  Floats dlatent_out(static_cast<size_t>(l.rows * l.heads * l.latent)), out(dout.size());
  PerHeadLinear(pool, dout.data(), l.rows, expand_back_panels, l.latent, l.value, 1,
                dlatent_out.data());
  const Outputs r = Compute(pool, shape, l.rows, all_query, cached, dlatent_out);
  PerHeadLinear(pool, r.out.data(), l.rows, expand_panels, l.value, l.latent, 1, out.data());

  Doubles qd(q.begin(), q.end()), cd(cached.begin(), cached.end()), wd(kv_b.begin(), kv_b.end());
  const Doubles want = Expanded(l, qd, cd, wd);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(out[i], want[i], 3e-6);

  // Gradients: of the query through the absorbed part and the rotated part, and of the cache.
  Floats dq_latent, dq_nope(q_nope.size());
  for (int64_t at = 0; at < l.rows * l.heads; ++at) {
    dq_latent.insert(dq_latent.end(), r.dq.begin() + at * width,
                     r.dq.begin() + at * width + l.latent);
  }
  PerHeadLinear(pool, dq_latent.data(), l.rows, absorb_back_panels, l.nope, l.latent, 1,
                dq_nope.data());
  const auto derivative = [&](double& at) {
    const double before = at;
    double sums[2] = {0, 0};
    for (const int side : {0, 1}) {
      at = before + (side == 0 ? 1e-5 : -1e-5);
      const Doubles y = Expanded(l, qd, cd, wd);
      for (size_t i = 0; i < y.size(); ++i) sums[side] += y[i] * dout[i];
    }
    at = before;
    return (sums[0] - sums[1]) / 2e-5;
  };
  tests::Random random(5);
  for (int n = 0; n < 40; ++n) {
    const int64_t at = random.Between(0, l.rows * l.heads - 1), i = random.Between(0, query - 1);
    const float ours = i < l.nope ? dq_nope[static_cast<size_t>(at * l.nope + i)]
                                  : r.dq[static_cast<size_t>(at * width + l.latent + i - l.nope)];
    EXPECT_NEAR(ours, derivative(qd[static_cast<size_t>(at * query + i)]), 3e-6);
    const size_t j = static_cast<size_t>(random.Between(0, l.rows * width - 1));
    EXPECT_NEAR(r.dcache[j], derivative(cd[j]), 1e-5);
  }

  // The expanded form in binary32 is another order.
  Floats expanded_scores, absorbed_scores;
  for (int64_t t = 0; t < l.rows; ++t) {
    float absorbed = 0.0f, expanded = 0.0f;
    for (int64_t r2 = 0; r2 < l.latent; ++r2) {
      absorbed = std::fma(latent_query[static_cast<size_t>(t * l.heads * l.latent + r2)],
                          cached[static_cast<size_t>(r2)], absorbed);
    }
    for (int64_t i = 0; i < l.nope; ++i) {
      float key = 0.0f;
      for (int64_t r2 = 0; r2 < l.latent; ++r2) {
        key = std::fma(kv_b[static_cast<size_t>(i * l.latent + r2)],
                       cached[static_cast<size_t>(r2)], key);
      }
      expanded = std::fma(q[static_cast<size_t>(t * l.heads * query + i)], key, expanded);
    }
    absorbed_scores.push_back(absorbed), expanded_scores.push_back(expanded);
  }
  EXPECT_GT(CountDifferentBits(absorbed_scores, expanded_scores), 0);
}

Floats Rounded(Floats x) {
  for (float& v : x) v = ToFloat(RoundToBf16(v));
  return x;
}

// Of each head: forward, input gradient and weight gradients of two units, in the three modes, on
// every instruction set. A product of rows that were not rounded is another one.
TEST(PerHeadLinearTest, EqualsScalarTwinInEveryMode) {
  const NumericThread numeric;
  constexpr int64_t kRows = 11, kHeads = 3, kN = 37, kK = 512;
  const RowRange units[] = {{0, 4}, {4, kRows}};
  const Floats x = Uniform(kRows * kHeads * kK, 1), dy = Uniform(kRows * kHeads * kN, 2),
               weights = Uniform(kHeads * kN * kK, 3), before = Uniform(PanelFloats(kN, kK), 4);
  const size_t matrix = static_cast<size_t>(kN * kK);
  for (const char* set : {"avx2", "avx512", "avx512_bf16"}) {
    if (!SetIsa(set).ok()) continue;
    for (const bool half : {false, true}) {
      for (const Inputs inputs : {Inputs::kF32, Inputs::kBf16}) {
        if (!half && inputs == Inputs::kBf16) continue;
        SCOPED_TRACE(testing::Message() << set << " bf16 weights " << half << ", rounded rows "
                                        << (inputs == Inputs::kBf16));
        Pool pool(2);
        const Floats w = half ? Rounded(weights) : weights,
                     xs = inputs == Inputs::kBf16 ? Rounded(x) : x;
        std::vector<Floats> panels, transposed, gradients(kHeads, before);
        std::vector<std::vector<BFloat16>> rounded;
        std::vector<ConstPanels> forward, backward;
        std::vector<float*> accumulators;
        for (int64_t h = 0; h < kHeads; ++h) {
          const float* rows = w.data() + h * kN * kK;
          panels.emplace_back(static_cast<size_t>(PanelFloats(kN, kK)));
          PackPanels(pool, rows, kN, kK, panels.back().data());
          rounded.emplace_back(static_cast<size_t>(PanelElements(Element::kBf16, kN, kK)));
          ASSERT_TRUE(PackPanels(pool, rows, kN, kK, rounded.back().data()));
          transposed.emplace_back(static_cast<size_t>(PanelFloats(kK, kN)));
          TransposePanels(pool, panels.back().data(), kN, kK, transposed.back().data());
        }
        for (size_t h = 0; h < panels.size(); ++h) {
          forward.push_back(half ? ConstPanels(rounded[h].data()) : ConstPanels(panels[h].data()));
          backward.push_back(transposed[h].data());
          accumulators.push_back(gradients[h].data());
        }
        Floats y(dy.size()), dx(x.size());
        PerHeadLinear(pool, x.data(), kRows, forward, kN, kK, LeafCount(kK, 0), y.data(), inputs);
        PerHeadLinear(pool, dy.data(), kRows, backward, kK, kN, LeafCount(kN, 0), dx.data());
        PerHeadWeightGradient(pool, units, x.data(), dy.data(), kN, kK, accumulators, inputs);

        Floats want(y.size()), want_dx(dx.size()), unrounded(y.size());
        for (int64_t h = 0; h < kHeads; ++h) {
          const float* rows = w.data() + h * kN * kK;
          Floats columns(matrix), dw(matrix), got(matrix);
          for (int64_t i = 0; i < kN * kK; ++i) {
            columns[static_cast<size_t>(i % kK * kN + i / kK)] = rows[i];
          }
          reference::Linear(xs.data() + h * kK, kHeads * kK, kRows, rows, kN, kK, LeafCount(kK, 0),
                            nullptr, want.data() + h * kN, kHeads * kN);
          reference::Linear(x.data() + h * kK, kHeads * kK, kRows, rows, kN, kK, LeafCount(kK, 0),
                            nullptr, unrounded.data() + h * kN, kHeads * kN);
          reference::Linear(dy.data() + h * kN, kHeads * kN, kRows, columns.data(), kK, kN,
                            LeafCount(kN, 0), nullptr, want_dx.data() + h * kK, kHeads * kK);
          UnpackPanels(pool, before.data(), kN, kK, dw.data());
          for (const RowRange& unit : units) {
            reference::LinearWeightGradient(xs.data() + (unit.begin * kHeads + h) * kK, kHeads * kK,
                                            dy.data() + (unit.begin * kHeads + h) * kN, kHeads * kN,
                                            unit.end - unit.begin, kN, kK, dw.data());
          }
          UnpackPanels(pool, accumulators[static_cast<size_t>(h)], kN, kK, got.data());
          EXPECT_EQ(CountDifferentBits(got, dw), 0) << "head " << h;
        }
        EXPECT_EQ(CountDifferentBits(y, want), 0);
        EXPECT_EQ(CountDifferentBits(dx, want_dx), 0);
        EXPECT_EQ(CountDifferentBits(want, unrounded) > 0, inputs == Inputs::kBf16);
      }
    }
  }
  ASSERT_TRUE(SetIsa("auto").ok());
}

TEST(LatentAttentionTest, RefusesByField) {
  EXPECT_TRUE(ValidateLatentShape({128, 512, 64, 0.1f}).ok());
  const struct {
    LatentShape shape;
    const char* field;
  } cases[] = {{{0, 8, 8, 1}, "heads"},
               {{1, 0, 8, 1}, "latent"},
               {{1, 8, -1, 1}, "rope"},
               {{1, 1000, 64, 1}, "latent + rope"}};
  for (const auto& c : cases) {
    const Status status = ValidateLatentShape(c.shape);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.ToString().find(c.field), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace titan::kernels
