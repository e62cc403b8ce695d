// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/linear.h"

#include <cmath>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/panels.h"
#include "core/kernels/reference_linear.h"

namespace titan::kernels {

void Linear(Pool& pool, const float* x, int64_t ldx, int64_t m, const float* panels, int64_t n,
            int64_t k, int leaves, const float* bias, float* out, int64_t ldo) {
  TITAN_CHECK(leaves >= 1 && leaves <= kMaxLeaves && k % leaves == 0);
  pool.Run(static_cast<int>(n), [&](int column) {
    std::vector<float> w(k);
    GatherRow(panels, n, k, column, w.data());
    for (int64_t row = 0; row < m; ++row) {
      float value = reference::LinearOutput(x + row * ldx, w.data(), k, leaves);
      if (bias != nullptr) value = value + bias[column];
      out[row * ldo + column] = value;
    }
  });
}

void LinearWeightGradient(Pool& pool, const float* x, int64_t ldx, const float* dy, int64_t ldy,
                          int64_t m, int64_t n, int64_t k, float* panels_accumulator) {
  pool.Run(static_cast<int>(n), [&](int column) {
    std::vector<float> chain(k, 0.0f);
    reference::LinearWeightGradient(x, ldx, dy + column, ldy, m, 1, k, chain.data());
    for (int64_t i = 0; i < k; ++i) panels_accumulator[PanelIndex(k, column, i)] += chain[i];
  });
}

void LinearBiasGradient(Pool& pool, const float* dy, int64_t ldy, int64_t m, int64_t n,
                        float* accumulator) {
  pool.Run(1, [&](int) { reference::LinearBiasGradient(dy, ldy, m, n, accumulator); });
}

}  // namespace titan::kernels
