// SPDX-License-Identifier: Apache-2.0
//
// The rotary table: double functions of our own (no libm on a path to a log-prob), then f32.
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "core/base/check.h"
#include "core/base/double_exp.h"
#include "core/kernels/rope.h"

namespace titan::kernels {
namespace {

constexpr double kLn2Hi = 0x1.62e42fee00000p-1;  // 32 significant bits
constexpr double kLn2Lo = 0x1.a39ef35793c76p-33;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
// pi / 2 in four parts; multiples up to 2^24 of the first three are exact.
constexpr double kHalfPi1 = 0x1.921fb54000000p+0;
constexpr double kHalfPi2 = 0x1.10b461p-30;
constexpr double kHalfPi3 = 0x1.a62633p-58;
constexpr double kHalfPi4 = 0x1.45c06e0e68948p-86;
constexpr double kTwoPi = 0x1.921fb54442d18p+2;
constexpr int64_t kMaxPositions = int64_t{1} << 24;

// log x for normal x > 0: x = 2^e m, m in [sqrt(1/2), sqrt 2); log m = 2 atanh(s), s = (m - 1) / (m
// + 1).
double Log(double x) {
  const int64_t bits = std::bit_cast<int64_t>(x);
  constexpr int64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  const int64_t e = (bits - kSqrtHalf) >> 52;
  const double m =
      std::bit_cast<double>(bits - static_cast<int64_t>(static_cast<uint64_t>(e) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double series = 0.0;  // sum of s2^i / (2i + 1), i = 1..; s2 < 0.0295
  for (int i = 13; i >= 1; --i) series = series * s2 + 1.0 / (2.0 * i + 1.0);
  const double log_m = 2.0 * s + 2.0 * s * (s2 * series);
  return static_cast<double>(e) * kLn2Hi + (log_m + static_cast<double>(e) * kLn2Lo);
}

// Taylor series on [-pi/4, pi/4].
double SinReduced(double r) {
  const double r2 = r * r;
  double p = 0.0;
  for (int i = 17; i >= 3; i -= 2) p = (p + 1.0) * (-r2 / static_cast<double>(i * (i - 1)));
  return r + r * p;
}

double CosReduced(double r) {
  const double r2 = r * r;
  double p = 0.0;
  for (int i = 18; i >= 2; i -= 2) p = (p + 1.0) * (-r2 / static_cast<double>(i * (i - 1)));
  return 1.0 + p;
}

// Where the ramp of yarn begins and ends, in units of i.
struct YarnRange {
  double low = 0, high = 0;
};

YarnRange YarnRangeOf(const RopeScaling& scaling, double theta, int rotary_dim) {
  const auto correction = [&](double beta) {
    return rotary_dim * Log(scaling.original_max_positions / (kTwoPi * beta)) / (2.0 * Log(theta));
  };
  YarnRange range = {correction(scaling.beta_fast), correction(scaling.beta_slow)};
  if (scaling.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  if (range.low < 0.0) range.low = 0.0;
  if (range.high > rotary_dim - 1) range.high = rotary_dim - 1;
  if (range.low == range.high) range.high += 0.001;
  return range;
}

// g of the header.
double YarnMagnitude(double q, double factor) {
  return factor > 1.0 ? 0.1 * q * Log(factor) + 1.0 : 1.0;
}

double AttentionFactorOf(const RopeScaling& scaling) {
  if (scaling.kind != RopeScaling::Kind::kYarn) return 1.0;
  if (scaling.attention_factor != 0.0) return scaling.attention_factor;
  if (scaling.mscale != 0.0 && scaling.mscale_all_dim != 0.0) {
    return YarnMagnitude(scaling.mscale, scaling.factor) /
           YarnMagnitude(scaling.mscale_all_dim, scaling.factor);
  }
  return YarnMagnitude(1.0, scaling.factor);
}

float Scale(float inv_freq, int i, const YarnRange& yarn, const RopeScaling& scaling) {
  const double f = inv_freq;
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      return inv_freq;
    case RopeScaling::Kind::kLinear:
      return static_cast<float>(f / scaling.factor);
    case RopeScaling::Kind::kLlama3: {
      const double wavelength = kTwoPi / f;
      if (wavelength < scaling.original_max_positions / scaling.high_freq_factor) return inv_freq;
      if (wavelength > scaling.original_max_positions / scaling.low_freq_factor) {
        return static_cast<float>(f / scaling.factor);
      }
      const double t = (scaling.original_max_positions / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
      return static_cast<float>((1.0 - t) * (f / scaling.factor) + t * f);
    }
    case RopeScaling::Kind::kYarn: {
      double ramp = (i - yarn.low) / (yarn.high - yarn.low);
      ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
      return static_cast<float>(ramp * (f / scaling.factor) + (1.0 - ramp) * f);
    }
  }
  TITAN_CHECK(false);
  return 0.0f;
}

Status CheckScaling(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kNone) return OkStatus();
  if (!std::isfinite(scaling.factor) || scaling.factor < 1.0) {
    return InvalidArgument("rope scaling: factor must be finite and >= 1, got " +
                           std::to_string(scaling.factor));
  }
  if (scaling.kind == RopeScaling::Kind::kLinear) return OkStatus();
  if (!std::isfinite(scaling.original_max_positions) || scaling.original_max_positions < 1.0) {
    return InvalidArgument("rope scaling: original_max_position_embeddings must be >= 1, got " +
                           std::to_string(scaling.original_max_positions));
  }
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    if (scaling.low_freq_factor > 0.0 && std::isfinite(scaling.high_freq_factor) &&
        scaling.high_freq_factor > scaling.low_freq_factor) {
      return OkStatus();
    }
    return InvalidArgument(
        "rope scaling llama3: needs 0 < low_freq_factor < high_freq_factor, got " +
        std::to_string(scaling.low_freq_factor) + " and " +
        std::to_string(scaling.high_freq_factor));
  }
  if (!(scaling.beta_slow > 0.0) || !(scaling.beta_fast > scaling.beta_slow) ||
      !std::isfinite(scaling.beta_fast)) {
    return InvalidArgument("rope scaling yarn: needs 0 < beta_slow < beta_fast, got " +
                           std::to_string(scaling.beta_slow) + " and " +
                           std::to_string(scaling.beta_fast));
  }
  for (const double value : {scaling.attention_factor, scaling.mscale, scaling.mscale_all_dim}) {
    if (!(value >= 0.0) || !std::isfinite(value)) {
      return InvalidArgument(
          "rope scaling yarn: attention_factor, mscale and mscale_all_dim must be finite and not "
          "negative");
    }
  }
  return OkStatus();
}

}  // namespace

double DLogDouble(double x) { return Log(x); }

double DPow(double base, double exponent) {
  return exponent == 0.0 ? 1.0 : DoubleExp(exponent * Log(base));
}

void DSinCos(double angle, double* sine, double* cosine) {
  TITAN_CHECK(angle >= -0x1p24 && angle <= 0x1p24);
  const double n = (angle * kTwoOverPi + 0x1.8p52) - 0x1.8p52;
  const double r = (((angle - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3) - n * kHalfPi4;
  const double s = SinReduced(r), c = CosReduced(r);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      *sine = s, *cosine = c;
      return;
    case 1:
      *sine = c, *cosine = -s;
      return;
    case 2:
      *sine = -s, *cosine = -c;
      return;
    default:
      *sine = -c, *cosine = s;
      return;
  }
}

StatusOr<RopeTable> RopeTable::Create(int head_dim, double theta, const RopeScaling& scaling,
                                      int64_t max_positions, int rotary_dim, RopePairs pairs) {
  if (rotary_dim == 0) rotary_dim = head_dim;
  if (rotary_dim < 2 || rotary_dim % 2 != 0 || rotary_dim > head_dim) {
    return InvalidArgument(
        "rope: the rotated channels of a head must be even, >= 2 and at most "
        "head_dim " +
        std::to_string(head_dim) + ", got " + std::to_string(rotary_dim));
  }
  if (!std::isfinite(theta) || theta <= 1.0) {
    return InvalidArgument("rope: theta must be finite and > 1, got " + std::to_string(theta));
  }
  if (max_positions < 1 || max_positions > kMaxPositions) {
    return InvalidArgument("rope: max_positions must lie in 1..16777216, got " +
                           std::to_string(max_positions));
  }
  TITAN_RETURN_IF_ERROR(CheckScaling(scaling));
  RopeTable table;
  table.head_dim_ = head_dim;
  table.half_ = rotary_dim / 2;
  table.pairs_ = pairs;
  table.attention_factor_ = AttentionFactorOf(scaling);
  YarnRange yarn;
  if (scaling.kind == RopeScaling::Kind::kYarn) yarn = YarnRangeOf(scaling, theta, rotary_dim);
  table.max_positions_ = max_positions;
  for (int i = 0; i < table.half_; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    const float power = static_cast<float>(DPow(theta, exponent));
    if (!std::isfinite(power))
      return InvalidArgument("rope: theta " + std::to_string(theta) + " is too large");
    table.inv_freq_.push_back(Scale(1.0f / power, i, yarn, scaling));
  }
  table.cosines_.resize(max_positions * table.half_);
  table.sines_.resize(max_positions * table.half_);
  for (int64_t position = 0; position < max_positions; ++position) {
    for (int i = 0; i < table.half_; ++i) {
      double s, c;
      DSinCos(static_cast<double>(position) * static_cast<double>(table.inv_freq_[i]), &s, &c);
      table.sines_[position * table.half_ + i] = static_cast<float>(s * table.attention_factor_);
      table.cosines_[position * table.half_ + i] = static_cast<float>(c * table.attention_factor_);
    }
  }
  return table;
}

}  // namespace titan::kernels
