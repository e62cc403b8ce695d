// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/norm.h"

#include <algorithm>
#include <cmath>

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

void RmsNormRow(const float* x, int64_t hidden, const float* gain, float eps, float* out,
                float* inv_rms) {
  const float ss = RowSumProductVector(x, x, hidden);
  const float inv = 1.0f / std::sqrt(ss / static_cast<float>(hidden) + eps);
  if (inv_rms != nullptr) *inv_rms = inv;
  const FloatVec scale = Broadcast(inv);
  for (int64_t i = 0; i < hidden; i += kLanes) {
    const FloatVec scaled = hn::Mul(LoadPart(x + i, hidden - i), scale);
    StorePart(hn::Mul(scaled, LoadPart(gain + i, hidden - i)), out + i, hidden - i);
  }
}

void RmsNormBackwardRow(const float* x, int64_t hidden, const float* gain, float inv,
                        const float* dy, float* dx) {
  float dot = 0.0f;
  for (int64_t c = 0; c < hidden; c += kRowSumChunk) {
    const int64_t count = std::min(kRowSumChunk, hidden - c);
    dot = dot + ChunkSum(count, [&](FloatVec acc, int64_t i, int64_t left) {
            const FloatVec a = hn::Mul(LoadPart(dy + c + i, left), LoadPart(gain + c + i, left));
            return hn::MulAdd(a, LoadPart(x + c + i, left), acc);
          });
  }
  const FloatVec minus_c = Broadcast(-((dot / static_cast<float>(hidden)) * (inv * inv)));
  const FloatVec scale = Broadcast(inv);
  for (int64_t i = 0; i < hidden; i += kLanes) {
    const FloatVec a = hn::Mul(LoadPart(dy + i, hidden - i), LoadPart(gain + i, hidden - i));
    const FloatVec inner = hn::MulAdd(minus_c, LoadPart(x + i, hidden - i), a);
    StorePart(hn::Mul(scale, inner), dx + i, hidden - i);
  }
}

// Columns [0, count) of one unit's gain gradient; count <= kGainColumns, row stride = hidden.
void RmsNormGainRange(const float* x, const float* dy, const float* inv_rms, int64_t rows,
                      int64_t hidden, int64_t count, float* dgain) {
  constexpr int64_t kVectors = kGainColumns / kLanes;
  FloatVec chain[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) chain[v] = hn::Zero(FloatTag());
  for (int64_t t = 0; t < rows; ++t) {
    const FloatVec inv = Broadcast(inv_rms[t]);
    const float* x_row = x + t * hidden;
    const float* dy_row = dy + t * hidden;
    if (HWY_LIKELY(count == kGainColumns)) {
      for (int64_t v = 0; v < kVectors; ++v) {
        const FloatVec normed = hn::Mul(Load(x_row + v * kLanes), inv);
        chain[v] = hn::MulAdd(Load(dy_row + v * kLanes), normed, chain[v]);
      }
      continue;
    }
    for (int64_t v = 0; v < kVectors && v * kLanes < count; ++v) {
      const int64_t left = count - v * kLanes;
      const FloatVec normed = hn::Mul(LoadPart(x_row + v * kLanes, left), inv);
      chain[v] = hn::MulAdd(LoadPart(dy_row + v * kLanes, left), normed, chain[v]);
    }
  }
  for (int64_t v = 0; v < kVectors && v * kLanes < count; ++v) {
    const int64_t left = count - v * kLanes;
    StorePart(hn::Add(LoadPart(dgain + v * kLanes, left), chain[v]), dgain + v * kLanes, left);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

constexpr int64_t kRowsPerTask = 8;

template <typename Body>
void OverRows(Pool& pool, int64_t rows, const Body& body) {
  pool.Run(static_cast<int>((rows + kRowsPerTask - 1) / kRowsPerTask), [&](int task) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t t = task * kRowsPerTask; t < end; ++t) body(t);
  });
}

}  // namespace

void RmsNorm(Pool& pool, const float* x, int64_t rows, int64_t hidden, const float* gain, float eps,
             float* out, float* inv_rms) {
  OverRows(pool, rows, [&](int64_t t) {
    TITAN_DISPATCH(RmsNormRow)
    (x + t * hidden, hidden, gain, eps, out + t * hidden,
     inv_rms == nullptr ? nullptr : inv_rms + t);
  });
}

void RmsNormBackward(Pool& pool, const float* x, int64_t rows, int64_t hidden, const float* gain,
                     const float* inv_rms, const float* dy, float* dx,
                     std::span<const RowRange> units, float* dgain) {
  // The gain first: dx may be dy.
  if (dgain != nullptr) {
    pool.Run(static_cast<int>((hidden + kGainColumns - 1) / kGainColumns), [&](int task) {
      const int64_t column = task * kGainColumns;
      for (const RowRange& unit : units) {
        const int64_t at = unit.begin * hidden + column;
        TITAN_DISPATCH(RmsNormGainRange)
        (x + at, dy + at, inv_rms + unit.begin, unit.end - unit.begin, hidden,
         std::min(kGainColumns, hidden - column), dgain + column);
      }
    });
  }
  OverRows(pool, rows, [&](int64_t t) {
    TITAN_DISPATCH(RmsNormBackwardRow)
    (x + t * hidden, hidden, gain, inv_rms[t], dy + t * hidden, dx + t * hidden);
  });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
