// SPDX-License-Identifier: Apache-2.0
//
// Elementary functions and row sums: vector against scalar by bits on both instruction sets, with
// and without flush-to-zero, accuracy against double, and the values at the edges. With the
// argument
// --all_inputs (the long suite) every one of the 2^32 inputs is swept instead of a seeded subset.
#include "core/kernels/elementary.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/philox.h"
#include "core/kernels/isa.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"
#include "core/kernels/row_sum.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kBlock = 1 << 12;

// The subset has two blocks of every sign and exponent.
uint32_t BlockStride() { return tests::AllInputs() ? 1 : 1021; }

using Scalar = float (*)(float);
using Vector = void (*)(const float*, int64_t, float*);

// The scalar function with its std::fma as an instruction (kernels need it anyway) instead of a
// call.
template <Scalar kFunction>
__attribute__((target("fma"), flatten)) void ScalarOf(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = kFunction(x[i]);
}

uint64_t CountDifferences(Vector scalar, Vector vector) {
  const uint64_t num_blocks = ((uint64_t{1} << 32) / kBlock + BlockStride() - 1) / BlockStride();
  std::atomic<uint64_t> differing{0};
  Pool pool(2);
  for (const Isa isa : tests::AllIsas()) {
    EXPECT_TRUE(SetIsa(isa).ok());
    pool.Run(static_cast<int>(num_blocks), [&](int task) {
      std::vector<float> x(kBlock), want(kBlock), got(kBlock);
      const uint32_t first = static_cast<uint32_t>(task) * BlockStride() * kBlock;
      for (uint32_t i = 0; i < kBlock; ++i) x[i] = std::bit_cast<float>(first + i);
      scalar(x.data(), kBlock, want.data());
      vector(x.data(), kBlock, got.data());
      for (uint32_t i = 0; i < kBlock; ++i) {
        if (tests::BitsOf(want[i]) != tests::BitsOf(got[i])) ++differing;
      }
    });
  }
  return differing.load();
}

TEST(ElementaryTest, VectorsEqualScalarsOnEveryExponentWithFlushing) {
  EXPECT_EQ(CountDifferences(&ScalarOf<&DExp>, &ExpOf), 0u);
  EXPECT_EQ(CountDifferences(&ScalarOf<&DLog>, &LogOf), 0u);
  EXPECT_EQ(CountDifferences(&ScalarOf<&DExpm1>, &Expm1Of), 0u);
  EXPECT_EQ(CountDifferences(&ScalarOf<&DLog1p>, &Log1pOf), 0u);
  EXPECT_EQ(CountDifferences(&ScalarOf<&DTanh>, &TanhOf), 0u);
  EXPECT_EQ(CountDifferences(&ScalarOf<&DErf>, &ErfOf), 0u);
  EXPECT_EQ(CountDifferences(&ScalarOf<&DSoftplus>, &SoftplusOf), 0u);
}

TEST(ElementaryTest, FlushingChangesNoResult) {
  std::vector<float> x, flushed, plain;
  for (uint64_t i = 0; i < 200000; ++i)
    x.push_back(std::bit_cast<float>(RandomWord(3, RandomDomain::kSampling, i, 0, 0)));
  for (uint32_t bits = 0; bits < 0x00900000u; bits += 77777)
    x.push_back(std::bit_cast<float>(bits));
  const auto all = [&](std::vector<float>* out) {
    for (const float value : x) {
      for (const Scalar f : {&DExp, &DLog, &DExpm1, &DLog1p, &DTanh, &DErf, &DSoftplus})
        out->push_back(f(value));
    }
  };
  {
    const NumericThread numeric;
    all(&flushed);
  }
  all(&plain);
  EXPECT_EQ(tests::CountDifferentBits(flushed, plain), 0);
}

// The largest distance of a function from double, in ulps of the exact value, over inputs and exact
// values that are normal numbers.
template <Scalar kFunction>
__attribute__((target("fma"), flatten)) double BlockError(uint32_t first, double (*exact)(double)) {
  double worst = 0.0;
  for (uint32_t i = 0; i < kBlock; ++i) {
    const float x = std::bit_cast<float>(first + i);
    const double want = exact(double{x});
    const double size = std::abs(want);
    if (!(std::abs(x) >= 0x1p-126f && size >= 0x1p-126 && size < 0x1.fffffep127)) continue;
    if (kFunction == &DSoftplus && x <= -87.33f) continue;
    if (kFunction == &DExp && (x >= 88.72f || x <= -87.33f)) continue;  // the edges are as defined
    if (kFunction == &DExpm1 && x >= 88.72f) continue;
    const double ulp = std::bit_cast<double>(
        (std::bit_cast<uint64_t>(size) & (uint64_t{0x7ff} << 52)) - (uint64_t{23} << 52));
    const double error = std::abs(kFunction(x) - want) / ulp;
    worst = error <= worst ? worst : error;  // of a NaN: the NaN
  }
  return worst;
}

template <Scalar kFunction>
double WorstError(double (*exact)(double)) {
  const uint64_t num_blocks = ((uint64_t{1} << 32) / kBlock + BlockStride() - 1) / BlockStride();
  std::vector<double> worst(num_blocks);
  Pool pool(2);
  pool.Run(static_cast<int>(num_blocks), [&](int task) {
    worst[static_cast<size_t>(task)] =
        BlockError<kFunction>(static_cast<uint32_t>(task) * BlockStride() * kBlock, exact);
  });
  for (const double error : worst) {
    if (!(error <= worst[0])) worst[0] = error;
  }
  return worst[0];
}

double ExactSoftplus(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

TEST(ElementaryTest, ErrorsInUlpsOfDouble) {
  const double exp = WorstError<&DExp>(&std::exp), log = WorstError<&DLog>(&std::log),
               expm1 = WorstError<&DExpm1>(&std::expm1), log1p = WorstError<&DLog1p>(&std::log1p),
               tanh = WorstError<&DTanh>(&std::tanh), erf = WorstError<&DErf>(&std::erf),
               softplus = WorstError<&DSoftplus>(&ExactSoftplus);
  std::printf("exp %.4f log %.4f expm1 %.4f log1p %.4f tanh %.4f erf %.4f softplus %.4f\n", exp,
              log, expm1, log1p, tanh, erf, softplus);
  EXPECT_LE(exp, 1.0);
  EXPECT_LE(log, 1.0);
  EXPECT_LE(expm1, 1.0);
  EXPECT_LE(log1p, 1.0);
  EXPECT_LE(tanh, 1.0);
  EXPECT_LE(erf, 1.0);
  EXPECT_LE(softplus, 1.0);
}

TEST(ElementaryTest, EdgesAreAsDefined) {
  EXPECT_EQ(DExp(88.72f), kInfinity);
  EXPECT_TRUE(std::isfinite(DExp(std::nextafter(88.72f, 0.0f))));
  EXPECT_EQ(tests::BitsOf(DExp(-87.33f)), 0u);
  EXPECT_GE(DExp(std::nextafter(-87.33f, 0.0f)), std::numeric_limits<float>::min());
  EXPECT_EQ(DExp(kInfinity), kInfinity);
  EXPECT_EQ(tests::BitsOf(DExp(-kInfinity)), 0u);
  EXPECT_EQ(DExp(0.0f), 1.0f);
  EXPECT_EQ(DExp(-0.0f), 1.0f);
  EXPECT_EQ(tests::BitsOf(DExp(std::bit_cast<float>(0xffc12345u))), elementary::kNanBits);
  EXPECT_EQ(tests::BitsOf(DLog(1.0f)), 0u);
  EXPECT_EQ(DLog(0.0f), -kInfinity);
  EXPECT_EQ(DLog(-0.0f), -kInfinity);
  EXPECT_EQ(DLog(1e-40f), -kInfinity);
  EXPECT_EQ(DLog(kInfinity), kInfinity);
  EXPECT_EQ(tests::BitsOf(DLog(-1.0f)), elementary::kNanBits);
  EXPECT_EQ(DExpm1(kInfinity), kInfinity);
  EXPECT_EQ(DExpm1(-kInfinity), -1.0f);
  EXPECT_EQ(DLog1p(-1.0f), -kInfinity);
  EXPECT_EQ(tests::BitsOf(DLog1p(-1.5f)), elementary::kNanBits);
  EXPECT_EQ(DLog1p(kInfinity), kInfinity);
  EXPECT_EQ(DTanh(-kInfinity), -1.0f);
  EXPECT_EQ(DErf(kInfinity), 1.0f);
  EXPECT_EQ(DSoftplus(kInfinity), kInfinity);
  EXPECT_EQ(tests::BitsOf(DSoftplus(-kInfinity)), 0u);
  EXPECT_EQ(tests::BitsOf(DSoftplus(std::bit_cast<float>(0xffc12345u))), elementary::kNanBits);
  EXPECT_EQ(DSoftplus(20.0f), 20.0f);
  EXPECT_EQ(DSoftplus(std::nextafter(20.0f, 0.0f)), std::nextafter(20.0f, 0.0f));
  EXPECT_EQ(DSoftplus(-20.0f), DExp(-20.0f));
  EXPECT_EQ(tests::BitsOf(DSoftplus(-88.0f)), 0u);
  for (const float zero : {0.0f, -0.0f, 1e-40f, -1e-40f}) {
    EXPECT_EQ(DSoftplus(zero), static_cast<float>(std::log(2.0)));
  }
  for (const float zero : {0.0f, -0.0f, 1e-40f}) {
    for (const Scalar f : {&DExpm1, &DLog1p, &DTanh, &DErf}) {
      EXPECT_EQ(tests::BitsOf(f(zero)), tests::BitsOf(zero));
    }
  }
}

TEST(RowSumTest, EqualsScalarTwinForEveryLength) {
  const NumericThread numeric;
  for (int64_t n :
       {1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 576, 1023, 1024, 1025, 1536, 2049, 5000}) {
    tests::Guarded a(n, n + 1), b(n, n + 2);
    a.FillWide(n), b.FillWide(n + 50);
    for (const Isa isa : tests::AllIsas()) {
      ASSERT_TRUE(SetIsa(isa).ok());
      EXPECT_EQ(tests::BitsOf(RowSum(a.data(), n)), tests::BitsOf(reference::RowSum(a.data(), n)))
          << n;
      EXPECT_EQ(tests::BitsOf(RowSumProduct(a.data(), b.data(), n)),
                tests::BitsOf(reference::RowSumProduct(a.data(), b.data(), n)))
          << n;
    }
  }
}

TEST(RowSumTest, OtherOrdersGiveOtherBits) {
  const NumericThread numeric;
  constexpr int64_t kCount = 4096;
  tests::Guarded a(kCount, 9);
  a.FillWide(11);
  float ascending = 0.0f;
  for (int64_t i = 0; i < kCount; ++i) ascending = ascending + a.data()[i];
  EXPECT_NE(tests::BitsOf(RowSum(a.data(), kCount)), tests::BitsOf(ascending));
}

}  // namespace
}  // namespace titan::kernels
