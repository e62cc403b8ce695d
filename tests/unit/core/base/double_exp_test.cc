// SPDX-License-Identifier: Apache-2.0
// Goal: our exp of doubles is exact to two ulp, at its edges too.
#include "core/base/double_exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace titan {
namespace {

TEST(DoubleExpTest, IsWithinTwoUlpOfTheLibrary) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> wide(-740.0, 709.0);
  std::uniform_real_distribution<double> narrow(-1.0, 1.0);
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? wide(random) : narrow(random);
    const double expected = std::exp(x);
    const double ulp = std::nextafter(expected, std::numeric_limits<double>::infinity()) - expected;
    ASSERT_LE(std::fabs(DoubleExp(x) - expected), 2 * ulp) << x;
  }
  EXPECT_EQ(DoubleExp(0.0), 1.0);
  EXPECT_EQ(DoubleExp(-800.0), 0.0);
  EXPECT_TRUE(std::isinf(DoubleExp(710.0)));
  EXPECT_TRUE(std::isnan(DoubleExp(std::nan(""))));
}

}  // namespace
}  // namespace titan
