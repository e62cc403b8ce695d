// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/panels.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace titan::kernels {
void PackPanels(Pool& pool, const float* rows, int64_t n, int64_t k, float* panels) {
  pool.Run(static_cast<int>(PanelCount(n)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, n - first);
    float* out = panels + first * k;
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < columns; ++j) out[i * kPanelColumns + j] = rows[(first + j) * k + i];
      for (int64_t j = columns; j < kPanelColumns; ++j) out[i * kPanelColumns + j] = 0.0f;
    }
  });
}

void UnpackPanels(Pool& pool, const float* panels, int64_t n, int64_t k, float* rows) {
  pool.Run(static_cast<int>(PanelCount(n)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, n - first);
    const float* in = panels + first * k;
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < k; ++i) rows[(first + j) * k + i] = in[i * kPanelColumns + j];
    }
  });
}

void TransposePanels(Pool& pool, const float* panels, int64_t n, int64_t k, float* transposed) {
  // Output panel q holds columns k = 32q.. of W as its 32 lanes, at every n.
  pool.Run(static_cast<int>(PanelCount(k)), [&](int q) {
    const int64_t first = q * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, k - first);
    float* out = transposed + first * n;
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        out[row * kPanelColumns + j] = j < columns ? panels[PanelIndex(k, row, first + j)] : 0.0f;
      }
    }
  });
}

void GatherRow(const float* panels, int64_t n, int64_t k, int64_t row, float* out) {
  TITAN_DCHECK(row >= 0 && row < n);
  const float* in = panels + PanelIndex(k, row, 0);
  for (int64_t i = 0; i < k; ++i) out[i] = in[i * kPanelColumns];
}

}  // namespace titan::kernels
