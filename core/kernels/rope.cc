// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/rope.h"

#include <algorithm>
#include <vector>

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

// body(head, cosines, sines) for every head of every row.
template <typename Body>
void OverHeads(Pool& pool, const RopeTable& table, float* x, int64_t ldx, int64_t rows,
               int num_heads, const int32_t* positions, const Body& body) {
  for (int64_t t = 0; t < rows; ++t)
    TITAN_CHECK(positions[t] >= 0 && positions[t] < table.max_positions());
  pool.Run(static_cast<int>((rows + kRowsPerTask - 1) / kRowsPerTask), [&](int task) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t t = task * kRowsPerTask; t < end; ++t) {
      for (int h = 0; h < num_heads; ++h) {
        body(x + t * ldx + static_cast<int64_t>(h) * table.head_dim(), table.cosines(positions[t]),
             table.sines(positions[t]));
      }
    }
  });
}

// (2i, 2i + 1) -> (i, i + half).
void Split(float* head, int64_t half) {
  std::vector<float> pairs(head, head + 2 * half);
  for (int64_t i = 0; i < half; ++i) {
    head[i] = pairs[static_cast<size_t>(2 * i)];
    head[half + i] = pairs[static_cast<size_t>(2 * i + 1)];
  }
}

void Interleave(float* head, int64_t half) {
  std::vector<float> halves(head, head + 2 * half);
  for (int64_t i = 0; i < half; ++i) {
    head[2 * i] = halves[static_cast<size_t>(i)];
    head[2 * i + 1] = halves[static_cast<size_t>(half + i)];
  }
}

}  // namespace

void ApplyRope(Pool& pool, const RopeTable& table, float* x, int64_t ldx, int64_t rows,
               int num_heads, const int32_t* positions) {
  const Rotation rotate = TITAN_DISPATCH(RotateHead);
  const int64_t half = table.rotary_dim() / 2;
  const bool interleaved = table.pairs() == RopePairs::kInterleaved;
  OverHeads(pool, table, x, ldx, rows, num_heads, positions,
            [&](float* head, const float* cosines, const float* sines) {
              if (interleaved) Split(head, half);
              rotate(head, half, cosines, sines);
            });
}

void ApplyRopeBackward(Pool& pool, const RopeTable& table, float* dx, int64_t ldx, int64_t rows,
                       int num_heads, const int32_t* positions) {
  const Rotation rotate = TITAN_DISPATCH(RotateHeadBack);
  const int64_t half = table.rotary_dim() / 2;
  const bool interleaved = table.pairs() == RopePairs::kInterleaved;
  OverHeads(pool, table, dx, ldx, rows, num_heads, positions,
            [&](float* head, const float* cosines, const float* sines) {
              rotate(head, half, cosines, sines);
              if (interleaved) Interleave(head, half);
            });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
