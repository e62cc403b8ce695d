// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/rope.h"

#include "core/base/check.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels {
namespace {

void CheckPositions(const RopeTable& table, const int32_t* positions, int64_t rows) {
  for (int64_t t = 0; t < rows; ++t)
    TITAN_CHECK(positions[t] >= 0 && positions[t] < table.max_positions());
}

}  // namespace

void ApplyRope(Pool& pool, const RopeTable& table, float* x, int64_t ldx, int64_t rows,
               int num_heads, const int32_t* positions) {
  CheckPositions(table, positions, rows);
  pool.Run(1, [&](int) { reference::ApplyRope(table, x, ldx, rows, num_heads, positions); });
}

void ApplyRopeBackward(Pool& pool, const RopeTable& table, float* dx, int64_t ldx, int64_t rows,
                       int num_heads, const int32_t* positions) {
  CheckPositions(table, positions, rows);
  pool.Run(1,
           [&](int) { reference::ApplyRopeBackward(table, dx, ldx, rows, num_heads, positions); });
}

}  // namespace titan::kernels
