// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/rope.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/kernels/isa.h"
#include "core/kernels/pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/rope.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

void RotateHead(float* head, int64_t half, const float* cosines, const float* sines) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const FloatVec c = LoadPart(cosines + i, left), s = LoadPart(sines + i, left);
    const FloatVec x1 = LoadPart(head + i, left), x2 = LoadPart(head + half + i, left);
    StorePart(hn::MulSub(x1, c, hn::Mul(x2, s)), head + i, left);
    StorePart(hn::MulAdd(x2, c, hn::Mul(x1, s)), head + half + i, left);
  }
}

void RotateHeadBack(float* head, int64_t half, const float* cosines, const float* sines) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const FloatVec c = LoadPart(cosines + i, left), s = LoadPart(sines + i, left);
    const FloatVec d1 = LoadPart(head + i, left), d2 = LoadPart(head + half + i, left);
    StorePart(hn::MulAdd(d1, c, hn::Mul(d2, s)), head + i, left);
    StorePart(hn::MulSub(d2, c, hn::Mul(d1, s)), head + half + i, left);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

constexpr int64_t kRowsPerTask = 8;

using Rotation = void (*)(float* head, int64_t half, const float* cosines, const float* sines);

void RotateRows(Pool& pool, const RopeTable& table, float* x, int64_t ldx, int64_t rows,
                int num_heads, const int32_t* positions, Rotation rotate) {
  for (int64_t t = 0; t < rows; ++t)
    TITAN_CHECK(positions[t] >= 0 && positions[t] < table.max_positions());
  pool.Run(static_cast<int>((rows + kRowsPerTask - 1) / kRowsPerTask), [&](int task) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t t = task * kRowsPerTask; t < end; ++t) {
      for (int h = 0; h < num_heads; ++h) {
        rotate(x + t * ldx + static_cast<int64_t>(h) * table.head_dim(), table.head_dim() / 2,
               table.cosines(positions[t]), table.sines(positions[t]));
      }
    }
  });
}

}  // namespace

void ApplyRope(Pool& pool, const RopeTable& table, float* x, int64_t ldx, int64_t rows,
               int num_heads, const int32_t* positions) {
  RotateRows(pool, table, x, ldx, rows, num_heads, positions, TITAN_DISPATCH(RotateHead));
}

void ApplyRopeBackward(Pool& pool, const RopeTable& table, float* dx, int64_t ldx, int64_t rows,
                       int num_heads, const int32_t* positions) {
  RotateRows(pool, table, dx, ldx, rows, num_heads, positions, TITAN_DISPATCH(RotateHeadBack));
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
