// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/attention.h"

#include "core/base/check.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels {
namespace {

void CheckShape(const AttentionShape& shape) {
  TITAN_CHECK(shape.head_dim >= 1 && shape.head_dim <= kMaxHeadDim);
  TITAN_CHECK(shape.num_kv_heads >= 1 && shape.num_heads % shape.num_kv_heads == 0);
}

}  // namespace

int64_t PageFloats(const AttentionShape& shape) {
  return 2 * static_cast<int64_t>(shape.num_kv_heads) * shape.head_dim * kPageTokens;
}

int64_t NumPages(int64_t num_positions) { return (num_positions + kPageTokens - 1) / kPageTokens; }

void WriteKv(Pool& pool, const AttentionShape& shape, const float* k, const float* v,
             std::span<const Segment> segments, float* base) {
  CheckShape(shape);
  pool.Run(1, [&](int) { reference::WriteKv(shape, k, v, segments, base); });
}

void AttentionForward(Pool& pool, const AttentionShape& shape, const float* q,
                      std::span<const Segment> segments, const float* base, float* out,
                      float* row_max, float* row_sum) {
  CheckShape(shape);
  pool.Run(1, [&](int) {
    reference::AttentionForward(shape, q, segments, base, out, row_max, row_sum);
  });
}

void AttentionBackward(Pool& pool, const AttentionShape& shape, const float* q,
                       std::span<const Segment> segments, const float* base, const float* out,
                       const float* dout, const float* row_max, const float* row_sum, float* dq,
                       float* dk, float* dv) {
  CheckShape(shape);
  for (const Segment& segment : segments) TITAN_CHECK(segment.first_position == 0);
  pool.Run(1, [&](int) {
    reference::AttentionBackward(shape, q, segments, base, out, dout, row_max, row_sum, dq, dk, dv);
  });
}

}  // namespace titan::kernels
