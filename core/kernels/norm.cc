// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/norm.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/kernels/isa.h"
#include "core/kernels/pool.h"

#ifndef TITAN_CORE_KERNELS_NORM_CONSTANTS_
#define TITAN_CORE_KERNELS_NORM_CONSTANTS_
namespace titan::kernels {
// Columns of one task of the gain gradient; blocking only.
inline constexpr int64_t kGainColumns = 64;
}  // namespace titan::kernels
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/norm.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// The factor of elements i.. of a vector, `left` of which exist.
HWY_INLINE FloatVec Factor(NormKind kind, const float* gain, int64_t i, int64_t left) {
  if (kind == NormKind::kPlain) return Broadcast(1.0f);
  const FloatVec g = LoadPart(gain + i, left);
  return kind == NormKind::kGain ? g : hn::Add(g, Broadcast(1.0f));
}

// Sum over a vector of `term(acc, i, left)` in the order of a row sum.
template <typename Term>
HWY_INLINE float RowSumOf(int64_t width, const Term& term) {
  float total = 0.0f;
  for (int64_t c = 0; c < width; c += kRowSumChunk) {
    total = total +
            ChunkSum(std::min(kRowSumChunk, width - c),
                     [&](FloatVec acc, int64_t i, int64_t left) { return term(acc, c + i, left); });
  }
  return total;
}

void RmsNormVector(NormKind kind, const float* x, int64_t width, const float* gain, float eps,
                   float* out, float* inv_rms) {
  const bool first = kind == NormKind::kGainFirst;
  const float ss = RowSumOf(width, [&](FloatVec acc, int64_t i, int64_t left) {
    FloatVec v = LoadPart(x + i, left);
    if (first) v = hn::Mul(v, Factor(kind, gain, i, left));
    return hn::MulAdd(v, v, acc);
  });
  const float inv = 1.0f / std::sqrt(ss / static_cast<float>(width) + eps);
  if (inv_rms != nullptr) *inv_rms = inv;
  const FloatVec scale = Broadcast(inv);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    FloatVec v = LoadPart(x + i, left);
    if (first) v = hn::Mul(v, Factor(kind, gain, i, left));
    v = hn::Mul(v, scale);
    if (kind == NormKind::kGain || kind == NormKind::kCentredGain) {
      v = hn::Mul(v, Factor(kind, gain, i, left));
    }
    StorePart(v, out + i, left);
  }
}

// dv of the header: the gradient of the vector that was normed.
void RmsNormBackwardVector(NormKind kind, const float* x, int64_t width, const float* gain,
                           float inv, const float* dy, float* dv) {
  const bool first = kind == NormKind::kGainFirst;
  const bool after = kind == NormKind::kGain || kind == NormKind::kCentredGain;
  const auto a_of = [&](int64_t i, int64_t left) {
    const FloatVec d = LoadPart(dy + i, left);
    return after ? hn::Mul(d, Factor(kind, gain, i, left)) : d;
  };
  const auto v_of = [&](int64_t i, int64_t left) {
    const FloatVec v = LoadPart(x + i, left);
    return first ? hn::Mul(v, Factor(kind, gain, i, left)) : v;
  };
  const float dot = RowSumOf(width, [&](FloatVec acc, int64_t i, int64_t left) {
    return hn::MulAdd(a_of(i, left), v_of(i, left), acc);
  });
  const FloatVec minus_c = Broadcast(-((dot / static_cast<float>(width)) * (inv * inv)));
  const FloatVec scale = Broadcast(inv);
  for (int64_t i = 0; i < width; i += kLanes) {
    const FloatVec inner = hn::MulAdd(minus_c, v_of(i, width - i), a_of(i, width - i));
    StorePart(hn::Mul(scale, inner), dv + i, width - i);
  }
}

// The last step of kGainFirst, in place: dx = dv * (1 + gain).
void ScaleByFactor(const float* gain, int64_t width, float* dv) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    StorePart(hn::Mul(LoadPart(dv + i, left), Factor(NormKind::kGainFirst, gain, i, left)), dv + i,
              left);
  }
}

// Columns [0, count) of one unit's gain gradient, count <= kGainColumns; vectors of one head follow
// each other at `stride` floats, heads at `width`. dy is dv and inv_rms null for kGainFirst.
void RmsNormGainRange(const float* x, const float* dy, const float* inv_rms, int64_t rows,
                      int64_t heads, int64_t width, int64_t count, float* dgain) {
  constexpr int64_t kVectors = kGainColumns / kLanes;
  FloatVec sum[kVectors];
  for (int64_t h = 0; h < heads; ++h) {
    FloatVec chain[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) chain[v] = hn::Zero(FloatTag());
    for (int64_t t = 0; t < rows; ++t) {
      const FloatVec inv = Broadcast(inv_rms == nullptr ? 1.0f : inv_rms[t * heads + h]);
      const float* x_row = x + (t * heads + h) * width;
      const float* dy_row = dy + (t * heads + h) * width;
      for (int64_t v = 0; v < kVectors && v * kLanes < count; ++v) {
        const int64_t left = count - v * kLanes;
        const FloatVec normed = hn::Mul(LoadPart(x_row + v * kLanes, left), inv);
        chain[v] = hn::MulAdd(LoadPart(dy_row + v * kLanes, left), normed, chain[v]);
      }
    }
    for (int64_t v = 0; v < kVectors; ++v) sum[v] = h == 0 ? chain[v] : hn::Add(sum[v], chain[v]);
  }
  for (int64_t v = 0; v < kVectors && v * kLanes < count; ++v) {
    const int64_t left = count - v * kLanes;
    StorePart(hn::Add(LoadPart(dgain + v * kLanes, left), sum[v]), dgain + v * kLanes, left);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

constexpr int64_t kFloatsPerTask = 8192;

// body(i) for each of `count` vectors of `width` floats.
template <typename Body>
void OverVectors(Pool& pool, int64_t count, int64_t width, const Body& body) {
  const int64_t group = std::max<int64_t>(1, kFloatsPerTask / width);
  pool.Run(static_cast<int>((count + group - 1) / group), [&](int task) {
    const int64_t end = std::min(count, (task + 1) * group);
    for (int64_t i = task * group; i < end; ++i) body(i);
  });
}

void GainGradient(Pool& pool, const float* x, const float* dy, const float* inv_rms, int64_t heads,
                  int64_t width, std::span<const RowRange> units, float* dgain) {
  pool.Run(static_cast<int>((width + kGainColumns - 1) / kGainColumns), [&](int task) {
    const int64_t column = task * kGainColumns;
    for (const RowRange& unit : units) {
      const int64_t at = unit.begin * heads * width + column;
      TITAN_DISPATCH(RmsNormGainRange)
      (x + at, dy + at, inv_rms == nullptr ? nullptr : inv_rms + unit.begin * heads,
       unit.end - unit.begin, heads, width, std::min(kGainColumns, width - column), dgain + column);
    }
  });
}

}  // namespace

void RmsNorm(Pool& pool, const float* x, int64_t rows, int64_t width, const float* gain, float eps,
             float* out, float* inv_rms, const NormShape& shape) {
  OverVectors(pool, rows * shape.heads, width, [&](int64_t i) {
    TITAN_DISPATCH(RmsNormVector)
    (shape.kind, x + i * width, width, gain, eps, out + i * width,
     inv_rms == nullptr ? nullptr : inv_rms + i);
  });
}

void RmsNormBackward(Pool& pool, const float* x, int64_t rows, int64_t width, const float* gain,
                     const float* inv_rms, const float* dy, float* dx,
                     std::span<const RowRange> units, float* dgain, const NormShape& shape) {
  const bool first = shape.kind == NormKind::kGainFirst;
  TITAN_CHECK(dgain == nullptr || shape.kind != NormKind::kPlain);
  // The gain reads dy, which dx may be, or dv, which dx holds for a moment.
  if (dgain != nullptr && !first) {
    GainGradient(pool, x, dy, inv_rms, shape.heads, width, units, dgain);
  }
  OverVectors(pool, rows * shape.heads, width, [&](int64_t i) {
    TITAN_DISPATCH(RmsNormBackwardVector)
    (shape.kind, x + i * width, width, gain, inv_rms[i], dy + i * width, dx + i * width);
  });
  if (!first) return;
  if (dgain != nullptr) GainGradient(pool, x, dx, nullptr, shape.heads, width, units, dgain);
  OverVectors(pool, rows * shape.heads, width, [&](int64_t i) {
    TITAN_DISPATCH(ScaleByFactor)(gain, width, dx + i * width);
  });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
