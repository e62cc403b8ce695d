// SPDX-License-Identifier: Apache-2.0
#include "core/base/double_exp.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace titan {

// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series to r^13 (next term < 2e-18 of the
// result); scaled in two factors so that results below the normal range round once.
double DoubleExp(double x) {
  if (std::isnan(x)) return x;
  if (x > 709.8) return std::numeric_limits<double>::infinity();
  if (x < -745.2) return 0.0;
  constexpr double kLog2e = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fefa39efp-1;
  constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;
  constexpr double kShift = 0x1.8p52;  // adding it rounds to an integer
  const double n = std::fma(x, kLog2e, kShift) - kShift;
  double r = std::fma(-n, kLn2High, x);
  r = std::fma(-n, kLn2Low, r);
  double factorial_inverse[14] = {1.0};
  for (int i = 1; i < 14; ++i) factorial_inverse[i] = factorial_inverse[i - 1] / i;
  double p = factorial_inverse[13];
  for (int i = 12; i >= 0; --i) p = std::fma(p, r, factorial_inverse[i]);
  const auto exponent = static_cast<int64_t>(n);
  const int64_t half = exponent / 2;
  const auto power = [](int64_t e) {
    return std::bit_cast<double>(static_cast<uint64_t>(e + 1023) << 52);
  };
  return p * power(half) * power(exponent - half);
}

}  // namespace titan
