// SPDX-License-Identifier: Apache-2.0
//
// Linear and its gradients equal the scalar reference bit for bit, for both instruction sets, any
// number of rows and threads, odd sizes, strides and unaligned pointers; a row's bits do not depend
// on the rows around it. Each comparison is also made against a deliberately wrong order, which
// must differ.
#include "core/kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "core/kernels/isa.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"
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

std::vector<Isa> Isas() {
  std::vector<Isa> isas = {Isa::kAvx2};
  if (*DetectIsa() == Isa::kAvx512) isas.push_back(Isa::kAvx512);
  return isas;
}

class LinearTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa("auto").ok()); }
  NumericThread environment_;
};

// One problem with everything that may go wrong around it: strides, pointers off by one float,
// poison in every gap.
struct Problem {
  Problem(int64_t m, int64_t n, int64_t k, uint64_t seed)
      : m(m), n(n), k(k), ldx(k + 3), ldo(n + 5) {
    rows = WideFloats(n * k, seed);
    bias = WideFloats(n, seed + 1);
    x_storage = PoisonedFloats(m * ldx + 1);
    const std::vector<float> values = WideFloats(m * k, seed + 2);
    for (int64_t r = 0; r < m; ++r) {
      std::copy_n(values.data() + r * k, k, x_storage.data() + 1 + r * ldx);
    }
    Pool pool(1);
    panel_storage = PoisonedFloats(PanelFloats(n, k) + 1);
    PackPanels(pool, rows.data(), n, k, panel_storage.data() + 1);
  }
  const float* x() const { return x_storage.data() + 1; }
  const float* panels() const { return panel_storage.data() + 1; }

  int64_t m, n, k, ldx, ldo;
  std::vector<float> rows, bias, x_storage, panel_storage;
};

// Runs the kernel into poisoned memory; returns out[m][n] and checks that the gaps stayed poison.
std::vector<float> RunLinear(const Problem& p, int leaves, bool with_bias, Pool& pool) {
  std::vector<float> storage = PoisonedFloats(p.m * p.ldo + 1);
  float* out = storage.data() + 1;
  Linear(pool, {p.x(), p.ldx, p.m, p.k},
         {p.panels(), p.n, leaves, with_bias ? p.bias.data() : nullptr, out, p.ldo});
  EXPECT_TRUE(IsPoison(storage[0]));
  std::vector<float> dense;
  for (int64_t r = 0; r < p.m; ++r) {
    dense.insert(dense.end(), out + r * p.ldo, out + r * p.ldo + p.n);
    for (int64_t j = p.n; j < p.ldo; ++j) {
      if (!IsPoison(out[r * p.ldo + j])) ADD_FAILURE() << "row " << r << " wrote column " << j;
    }
  }
  return dense;
}

std::vector<float> Reference(const Problem& p, int leaves, bool with_bias) {
  std::vector<float> out(static_cast<size_t>(p.m * p.n));
  reference::Linear(p.x(), p.ldx, p.m, p.rows.data(), p.n, p.k, leaves,
                    with_bias ? p.bias.data() : nullptr, out.data(), p.n);
  return out;
}

TEST_P(LinearTest, EqualsTheReferenceForEveryNumberOfRows) {
  std::vector<int64_t> row_counts = {31, 32, 33, 55, 56, 57, 127, 128, 129, 223, 224, 225, 1000};
  for (int64_t m = 1; m <= 30; ++m) row_counts.push_back(m);
  for (const int64_t m : row_counts) {
    Pool pool(m % 3 == 0 ? 5 : 2);
    const Problem p(m, 71, 136, 100 + static_cast<uint64_t>(m));
    const std::vector<float> got = RunLinear(p, 4, true, pool);
    const std::vector<float> wanted = Reference(p, 4, true);
    EXPECT_TRUE(SameBits(got.data(), wanted.data(), m * p.n)) << "m " << m;
  }
}

// Few rows take two panels at once, as far as there are full ones.
TEST_P(LinearTest, EqualsTheReferenceForFewRowsOfManyPanels) {
  for (int64_t m = 1; m <= 6; ++m) {
    for (const int leaves : {1, 2, 4, 8}) {
      const Problem p(m, 288 + m % 3 * 20, leaves * 17, 300 + static_cast<uint64_t>(m));
      const std::vector<float> wanted = Reference(p, leaves, true);
      for (const int threads : {1, 2, 3}) {
        Pool pool(threads);
        const std::vector<float> got = RunLinear(p, leaves, true, pool);
        EXPECT_TRUE(SameBits(got.data(), wanted.data(), m * p.n))
            << "m " << m << " n " << p.n << " leaves " << leaves << " threads " << threads;
      }
    }
  }
}

// Few or many, and on whatever threads they are made; no thread reads another's.
TEST_P(LinearTest, MadeRowsGiveTheBitsOfRowsThatLieThere) {
  for (int64_t m = 1; m <= 6; ++m) {
    const Problem p(m, 300, 72, 500 + static_cast<uint64_t>(m));
    const std::vector<float> wanted = Reference(p, 2, true);
    for (const int threads : {1, 2, 5}) {
      Pool pool(threads);
      std::vector<float> x(static_cast<size_t>(m * p.k));
      const auto make = [&](Pool& of, float* to) {
        of.Run(static_cast<int>(m),
               [&](int row) { std::copy_n(p.x() + row * p.ldx, p.k, to + row * p.k); });
      };
      const MadeRows made = {make, x.data()};
      std::vector<float> got(static_cast<size_t>(m * p.n));
      Linear(pool, {.m = m, .k = p.k, .made = &made},
             {p.panels(), p.n, 2, p.bias.data(), got.data(), p.n});
      EXPECT_TRUE(SameBits(got.data(), wanted.data(), m * p.n)) << m << " rows, " << threads;
    }
  }
}

TEST_P(LinearTest, EqualsTheReferenceForOddSizesEveryLeafCountAndThreadCount) {
  TestRandom random(7);
  for (int round = 0; round < 48; ++round) {
    const int leaves = 1 << (round % 4);
    const int threads = 1 + round % 3 + (round % 5 == 0 ? 1 : 0);
    const int64_t m = 1 + random.Below(40), n = 1 + random.Below(150);
    const int64_t k = leaves * (1 + random.Below(60));
    const Problem p(m, n, k, 1000 + static_cast<uint64_t>(round));
    Pool pool(threads);
    const std::vector<float> got = RunLinear(p, leaves, round % 2 == 0, pool);
    const std::vector<float> wanted = Reference(p, leaves, round % 2 == 0);
    EXPECT_TRUE(SameBits(got.data(), wanted.data(), m * n))
        << "m " << m << " n " << n << " k " << k << " leaves " << leaves << " threads " << threads;
  }
}

// Beyond the length up to which a chain is run in one go, parts of it are parked in memory.
TEST_P(LinearTest, EqualsTheReferenceForLongChains) {
  for (const int64_t m : {3, 15, 28, 29, 150}) {
    for (const int leaves : {1, 8}) {
      const Problem p(m, 37, leaves * (leaves == 1 ? 2501 : 1282), 50 + static_cast<uint64_t>(m));
      for (const int threads : {1, 3}) {
        Pool pool(threads);
        const std::vector<float> got = RunLinear(p, leaves, true, pool);
        const std::vector<float> wanted = Reference(p, leaves, true);
        EXPECT_TRUE(SameBits(got.data(), wanted.data(), m * p.n))
            << "m " << m << " leaves " << leaves;
      }
    }
  }
}

// Vacuity guard: with these operands another leaf count, a descending chain or a separate multiply
// and add differ in most outputs, so the comparisons above mean something.
TEST_P(LinearTest, AWrongOrderDiffersFromTheKernel) {
  const Problem p(33, 71, 136, 5);
  Pool pool(2);
  const std::vector<float> got = RunLinear(p, 4, false, pool);
  std::vector<float> reversed(got.size()), unfused(got.size());
  for (int64_t r = 0; r < p.m; ++r) {
    for (int64_t j = 0; j < p.n; ++j) {
      float down[4] = {}, twice[4] = {};
      for (int leaf = 0; leaf < 4; ++leaf) {
        for (int64_t i = 0; i < 34; ++i) {
          const int64_t up = leaf * 34 + i, back = leaf * 34 + 33 - i;
          down[leaf] = std::fma(p.x()[r * p.ldx + back], p.rows[j * p.k + back], down[leaf]);
          twice[leaf] = twice[leaf] + p.x()[r * p.ldx + up] * p.rows[j * p.k + up];
        }
      }
      reversed[r * p.n + j] = (down[0] + down[1]) + (down[2] + down[3]);
      unfused[r * p.n + j] = (twice[0] + twice[1]) + (twice[2] + twice[3]);
    }
  }
  const auto differing = [&](const std::vector<float>& other) {
    int64_t count = 0;
    for (size_t i = 0; i < got.size(); ++i) count += SameBits(&got[i], &other[i], 1) ? 0 : 1;
    return static_cast<double>(count) / static_cast<double>(got.size());
  };
  EXPECT_GT(differing(Reference(p, 2, false)), 0.3);
  EXPECT_GT(differing(reversed), 0.3);
  EXPECT_GT(differing(unfused), 0.3);
  EXPECT_EQ(differing(Reference(p, 4, false)), 0.0);
}

// A row gives the same bits alone, in any slice, at any place, next to its own copy.
TEST_P(LinearTest, ARowDoesNotSeeItsNeighbours) {
  constexpr int64_t kRows = 130, kN = 96, kK = 256;
  const Problem p(kRows, kN, kK, 9);
  Pool pool(2);
  const std::vector<float> all = RunLinear(p, 8, true, pool);
  TestRandom random(3);
  for (int round = 0; round < 12; ++round) {
    const int64_t m = 1 + random.Below(60);
    std::vector<int64_t> chosen;
    std::vector<float> x(static_cast<size_t>(m * kK)), out(static_cast<size_t>(m * kN));
    for (int64_t r = 0; r < m; ++r) {
      chosen.push_back(random.Below(kRows));  // slices, permutations and duplicates alike
      std::copy_n(p.x() + chosen.back() * p.ldx, kK, x.data() + r * kK);
    }
    Linear(pool, {x.data(), kK, m, kK}, {p.panels(), kN, 8, p.bias.data(), out.data(), kN});
    for (int64_t r = 0; r < m; ++r) {
      EXPECT_TRUE(SameBits(out.data() + r * kN, all.data() + chosen[r] * kN, kN))
          << "row " << chosen[r];
    }
  }
}

// The input gradient is Linear with the transposed panels.
TEST_P(LinearTest, InputGradientEqualsTheReferenceOfTheTransposedMatrix) {
  constexpr int64_t kM = 21, kN = 72, kK = 45;
  const Problem p(kM, kN, kK, 13);
  const std::vector<float> dy = WideFloats(kM * kN, 14);
  Pool pool(2);
  std::vector<float> transposed = PoisonedFloats(PanelFloats(kK, kN));
  TransposePanels(pool, p.panels(), kN, kK, transposed.data());
  std::vector<float> got(kM * kK), wanted(kM * kK), columns(kN * kK);
  Linear(pool, {dy.data(), kN, kM, kN}, {transposed.data(), kK, 2, nullptr, got.data(), kK});
  for (int64_t i = 0; i < kK; ++i) {
    for (int64_t j = 0; j < kN; ++j) columns[i * kN + j] = p.rows[j * kK + i];
  }
  reference::Linear(dy.data(), kN, kM, columns.data(), kK, kN, 2, nullptr, wanted.data(), kK);
  EXPECT_TRUE(SameBits(got.data(), wanted.data(), kM * kK));
}

// Several matrices of one call, with and without a bias, and with an addend apart from the output
// or the output itself: each has the bits of its own reference, and addend + product is in that
// order.
TEST_P(LinearTest, MatricesThatShareTheirRowsEqualTheReferenceOfEach) {
  TestRandom random(31);
  for (int round = 0; round < 24; ++round) {
    const bool long_chains = round % 8 == 7;
    const bool few_rows = round % 3 == 2;
    const int64_t m = 1 + random.Below(few_rows ? 5 : long_chains ? 40 : 120);
    const int leaves = 1 << (round % 4);
    const int64_t k = leaves * (long_chains ? 2050 / leaves + 1 : 1 + random.Below(40));
    const std::vector<float> x = WideFloats(m * k, 900 + static_cast<uint64_t>(round));
    std::vector<Problem> problems;
    std::vector<std::vector<float>> outs, addends, wanted;
    for (int i = 0; i < 1 + round % 4; ++i) {
      problems.emplace_back(m, 1 + random.Below(few_rows ? 400 : 90), k,
                            910 + static_cast<uint64_t>(10 * round + i));
      const Problem& p = problems.back();
      outs.push_back(PoisonedFloats(m * p.ldo));
      addends.push_back(WideFloats(m * p.ldo, 920 + static_cast<uint64_t>(10 * round + i)));
      wanted.emplace_back(static_cast<size_t>(m * p.n));
      reference::Linear(x.data(), k, m, p.rows.data(), p.n, k, leaves,
                        i % 2 == 0 ? p.bias.data() : nullptr, wanted.back().data(), p.n);
    }
    std::vector<LinearMatrix> matrices;
    for (size_t i = 0; i < problems.size(); ++i) {
      const Problem& p = problems[i];
      const bool adds = i % 3 != 0;
      if (adds) {
        for (int64_t r = 0; r < m * p.n; ++r) {
          wanted[i][r] = addends[i][r / p.n * p.ldo + r % p.n] + wanted[i][r];
        }
      }
      if (i % 3 == 1) outs[i] = addends[i];
      const float* addend = i % 3 == 1 ? outs[i].data() : adds ? addends[i].data() : nullptr;
      matrices.push_back({p.panels(), p.n, leaves, i % 2 == 0 ? p.bias.data() : nullptr,
                          outs[i].data(), p.ldo, addend});
    }
    Pool pool(1 + round % 3);
    Linear(pool, {x.data(), k, m, k}, matrices);
    for (size_t i = 0; i < problems.size(); ++i) {
      const Problem& p = problems[i];
      for (int64_t r = 0; r < m; ++r) {
        EXPECT_TRUE(SameBits(outs[i].data() + r * p.ldo, wanted[i].data() + r * p.n, p.n))
            << "round " << round << " matrix " << i << " row " << r;
        for (int64_t j = p.n; j < p.ldo; ++j) {
          const float left = outs[i][r * p.ldo + j];
          EXPECT_TRUE(i % 3 == 1 ? SameBits(&left, &addends[i][r * p.ldo + j], 1) : IsPoison(left));
        }
      }
    }
  }
}

// Groups of no, few and many rows, with none to three matrices: each has the bits of its own
// reference, and nothing else is written.
TEST_P(LinearTest, GroupsEqualTheReferenceOfEach) {
  constexpr int64_t kRows[] = {0, 1, 2, 3, 4, 7, 14, 28, 29, 90};
  TestRandom random(37);
  for (int round = 0; round < 20; ++round) {
    const bool long_chains = round % 10 == 9;
    const int leaves = 1 << (round % 4);
    const int64_t k = leaves * (long_chains ? 2050 / leaves + 1 : 1 + random.Below(40));
    std::vector<std::vector<float>> x;
    std::vector<std::vector<Problem>> problems;
    std::vector<std::vector<std::vector<float>>> outs;
    for (int g = 0; g < 1 + random.Below(9); ++g) {
      const int64_t m = kRows[random.Below(std::size(kRows))];
      const uint64_t seed = 1000 + static_cast<uint64_t>(100 * round + 10 * g);
      x.push_back(WideFloats(m * k, seed));
      problems.emplace_back();
      outs.emplace_back();
      for (int i = 0; i < random.Below(4); ++i) {
        // So many panels that tasks of few rows have several pairs.
        const int64_t n = 1 + random.Below(m <= 3 && i == 0 ? 4000 : 200);
        problems.back().emplace_back(m, n, k, seed + static_cast<uint64_t>(i));
        outs.back().push_back(PoisonedFloats(m * problems.back().back().ldo));
      }
    }
    std::vector<std::vector<LinearMatrix>> matrices(problems.size());
    std::vector<LinearGroup> groups;
    const auto rows_of = [&](size_t g) { return static_cast<int64_t>(x[g].size()) / k; };
    for (size_t g = 0; g < problems.size(); ++g) {
      for (size_t i = 0; i < problems[g].size(); ++i) {
        const Problem& p = problems[g][i];
        matrices[g].push_back({p.panels(), p.n, leaves, i % 2 == 0 ? p.bias.data() : nullptr,
                               outs[g][i].data(), p.ldo});
      }
      groups.push_back({{x[g].data(), k, rows_of(g), k}, matrices[g]});
    }
    Pool pool(1 + round % 3);
    LinearGroups(pool, groups);
    for (size_t g = 0; g < problems.size(); ++g) {
      for (size_t i = 0; i < problems[g].size(); ++i) {
        const Problem& p = problems[g][i];
        std::vector<float> wanted(static_cast<size_t>(rows_of(g) * p.n));
        reference::Linear(x[g].data(), k, rows_of(g), p.rows.data(), p.n, k, leaves,
                          i % 2 == 0 ? p.bias.data() : nullptr, wanted.data(), p.n);
        for (int64_t r = 0; r < rows_of(g); ++r) {
          const float* out = outs[g][i].data() + r * p.ldo;
          EXPECT_TRUE(SameBits(out, wanted.data() + r * p.n, p.n))
              << "round " << round << " group " << g << " matrix " << i << " row " << r;
          for (int64_t j = p.n; j < p.ldo; ++j) EXPECT_TRUE(IsPoison(out[j]));
        }
      }
    }
  }
}

// The terms join as (a + b) + c; a + (b + c) differs.
TEST_P(LinearTest, ASumEqualsTheReferencesAddedInOrder) {
  TestRandom random(41);
  for (int round = 0; round < 16; ++round) {
    const bool long_chains = round % 8 == 7;
    const int64_t m = 1 + random.Below(100), n = 20 + random.Below(80), ldo = n + 2;
    std::vector<std::vector<float>> x, panels, products;
    std::vector<LinearTerm> terms;
    for (int i = 0; i < 1 + round % 4; ++i) {
      const int leaves = 1 << random.Below(3);
      const int64_t k = leaves * (long_chains && i == 1 ? 2100 / leaves : 8 + random.Below(60));
      const uint64_t seed = 1000 + static_cast<uint64_t>(20 * round + 2 * i);
      x.push_back(WideFloats(m * k, seed));
      const std::vector<float> rows = WideFloats(n * k, seed + 1);
      panels.emplace_back(static_cast<size_t>(PanelFloats(n, k)));
      Pool pool(1);
      PackPanels(pool, rows.data(), n, k, panels.back().data());
      products.emplace_back(static_cast<size_t>(m * n));
      reference::Linear(x.back().data(), k, m, rows.data(), n, k, leaves, nullptr,
                        products.back().data(), n);
      terms.push_back({x.back().data(), k, k, panels.back().data(), leaves});
    }
    std::vector<float> wanted = products[0], other = products.back();
    for (size_t i = 1; i < products.size(); ++i) {
      for (size_t j = 0; j < wanted.size(); ++j) {
        wanted[j] = wanted[j] + products[i][j];
        other[j] = products[products.size() - 1 - i][j] + other[j];
      }
    }
    std::vector<float> got = PoisonedFloats(m * ldo);
    Pool pool(1 + round % 3);
    LinearSum(pool, m, terms, n, got.data(), ldo);
    for (int64_t r = 0; r < m; ++r) {
      EXPECT_TRUE(SameBits(got.data() + r * ldo, wanted.data() + r * n, n))
          << "round " << round << " row " << r;
      EXPECT_TRUE(IsPoison(got[r * ldo + n]) && IsPoison(got[r * ldo + n + 1]));
    }
    if (terms.size() > 2) {
      EXPECT_FALSE(SameBits(wanted.data(), other.data(), m * n));
    }
  }
}

TEST_P(LinearTest, WeightGradientsThatShareTheirRowsEqualTheReferenceOfEach) {
  constexpr int64_t kM = 150, kK = 61;
  const std::vector<float> x = WideFloats(kM * kK, 1200);
  const int64_t widths[] = {40, 7, 96};
  std::vector<std::vector<float>> dy, wanted, got;
  std::vector<LinearGradient> gradients;
  Pool pool(2);
  for (const int64_t n : widths) {
    dy.push_back(WideFloats(kM * n, 1201 + static_cast<uint64_t>(n)));
    std::vector<float> rows = WideFloats(n * kK, 1301 + static_cast<uint64_t>(n));
    got.emplace_back(static_cast<size_t>(PanelFloats(n, kK)));
    wanted.emplace_back(got.back().size());
    PackPanels(pool, rows.data(), n, kK, got.back().data());
    reference::LinearWeightGradient(x.data(), kK, dy.back().data(), n, kM, n, kK, rows.data());
    PackPanels(pool, rows.data(), n, kK, wanted.back().data());
    gradients.push_back({dy.back().data(), n, n, got.back().data()});
  }
  LinearWeightGradient(pool, {x.data(), kK, kM, kK}, gradients);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(SameBits(got[i].data(), wanted[i].data(), static_cast<int64_t>(got[i].size())))
        << i;
  }
}

TEST_P(LinearTest, WeightGradientEqualsTheReferenceUnitAfterUnit) {
  TestRandom random(21);
  for (int round = 0; round < 24; ++round) {
    const int64_t n = 1 + random.Below(100), k = 1 + random.Below(70);
    const int64_t ldx = k + random.Below(3), ldy = n + random.Below(3);
    Pool pool(1 + round % 4);
    std::vector<float> wanted = WideFloats(n * k, 300 + static_cast<uint64_t>(round));
    std::vector<float> got(static_cast<size_t>(PanelFloats(n, k)));
    PackPanels(pool, wanted.data(), n, k, got.data());
    for (int unit = 0; unit < 3; ++unit) {
      const int64_t m = random.Below(unit == 2 ? 200 : 40);
      const std::vector<float> x =
          WideFloats(m * ldx + 1, 400 + static_cast<uint64_t>(round * 3 + unit));
      const std::vector<float> dy =
          WideFloats(m * ldy + 1, 500 + static_cast<uint64_t>(round * 3 + unit));
      LinearWeightGradient(pool, {x.data() + 1, ldx, m, k}, {dy.data() + 1, ldy, n, got.data()});
      if (m > 0) {
        reference::LinearWeightGradient(x.data() + 1, ldx, dy.data() + 1, ldy, m, n, k,
                                        wanted.data());
      }
    }
    std::vector<float> packed(got.size());
    PackPanels(pool, wanted.data(), n, k, packed.data());
    // Whole panels, so that the pad columns are seen to stay +0.
    EXPECT_TRUE(SameBits(got.data(), packed.data(), PanelFloats(n, k))) << "n " << n << " k " << k;
  }
}

// So many rows and columns that the tiles of x are walked in several blocks.
TEST_P(LinearTest, WeightGradientOfALongUnitEqualsTheReference) {
  constexpr int64_t kM = 1500, kN = 40, kK = 300;
  const std::vector<float> x = WideFloats(kM * kK, 700), dy = WideFloats(kM * kN, 701);
  std::vector<float> wanted(kN * kK, 0.0f);
  std::vector<float> got(static_cast<size_t>(PanelFloats(kN, kK)), 0.0f), packed(got.size());
  Pool pool(2);
  LinearWeightGradient(pool, {x.data(), kK, kM, kK}, {dy.data(), kN, kN, got.data()});
  reference::LinearWeightGradient(x.data(), kK, dy.data(), kN, kM, kN, kK, wanted.data());
  PackPanels(pool, wanted.data(), kN, kK, packed.data());
  EXPECT_TRUE(SameBits(got.data(), packed.data(), PanelFloats(kN, kK)));
}

// Working memory belongs to the calling thread: callers with a pool each do not disturb one
// another.
TEST_P(LinearTest, CallersWithAPoolEachRunAtTheSameTime) {
  const Problem p(40, 96, 256, 15);
  const std::vector<float> wanted = Reference(p, 2, false);
  std::vector<std::vector<float>> got(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      Pool pool(2);
      for (int round = 0; round < 20; ++round) got[caller] = RunLinear(p, 2, false, pool);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::vector<float>& out : got) {
    EXPECT_TRUE(SameBits(out.data(), wanted.data(), p.m * p.n));
  }
}

// A thread keeps the rows that it packed for the other tasks of the call, not for the next call.
TEST_P(LinearTest, CallsOfTheSameShapeTakeTheirOwnRows) {
  for (const int64_t m : {5, 40, 300}) {
    Problem p(m, 200, 64, 16);
    Pool pool(2);
    for (int round = 0; round < 3; ++round) {
      const std::vector<float> values = WideFloats(m * p.k, 900 + static_cast<uint64_t>(round));
      for (int64_t r = 0; r < m; ++r) {
        std::copy_n(values.data() + r * p.k, p.k, p.x_storage.data() + 1 + r * p.ldx);
      }
      const std::vector<float> got = RunLinear(p, 2, false, pool);
      const std::vector<float> wanted = Reference(p, 2, false);
      EXPECT_TRUE(SameBits(got.data(), wanted.data(), m * p.n)) << "m " << m << " round " << round;
    }
  }
}

TEST_P(LinearTest, BiasGradientEqualsTheReference) {
  for (const int64_t n : {1, 63, 64, 65, 200}) {
    const int64_t m = 37, ldy = n + 1;
    const std::vector<float> dy = WideFloats(m * ldy, 600 + static_cast<uint64_t>(n));
    std::vector<float> wanted = WideFloats(n, 601), got = wanted;
    Pool pool(3);
    LinearBiasGradient(pool, dy.data(), ldy, m, n, got.data());
    reference::LinearBiasGradient(dy.data(), ldy, m, n, wanted.data());
    EXPECT_TRUE(SameBits(got.data(), wanted.data(), n));
  }
}

// The order itself is accurate: against float64, unit-scale operands, error relative to sqrt(k).
TEST_P(LinearTest, TheOrderIsAccurate) {
  constexpr int64_t kM = 16, kN = 64, kK = 1536;
  const std::vector<float> x = UniformFloats(kM * kK, 31), rows = UniformFloats(kN * kK, 32);
  std::vector<float> panels(static_cast<size_t>(PanelFloats(kN, kK))), out(kM * kN);
  Pool pool(2);
  PackPanels(pool, rows.data(), kN, kK, panels.data());
  Linear(pool, {x.data(), kK, kM, kK},
         {panels.data(), kN, LeafCount(kK, 0), nullptr, out.data(), kN});
  double squares = 0, exact_squares = 0;
  for (int64_t r = 0; r < kM; ++r) {
    for (int64_t j = 0; j < kN; ++j) {
      double exact = 0;
      for (int64_t i = 0; i < kK; ++i) {
        exact += static_cast<double>(x[r * kK + i]) * static_cast<double>(rows[j * kK + i]);
      }
      squares += (out[r * kN + j] - exact) * (out[r * kN + j] - exact);
      exact_squares += exact * exact;
    }
  }
  EXPECT_LT(std::sqrt(squares / exact_squares), 1e-6);
  EXPECT_GT(squares, 0.0);
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearTest, ::testing::ValuesIn(Isas()),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

}  // namespace
}  // namespace titan::kernels
