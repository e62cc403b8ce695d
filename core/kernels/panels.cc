// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/panels.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/kernels/tile.h"

namespace titan::kernels {
namespace {

constexpr int64_t kBlock = 4;  // side of the blocks that are transposed in registers

// out[i * ldo + j] = in[j * ldi + i] for i < rows, j < columns.
void Transpose(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
               int64_t ldo) {
  const int64_t whole_rows = rows - rows % kBlock, whole_columns = columns - columns % kBlock;
  for (int64_t i = 0; i < whole_rows; i += kBlock) {
    for (int64_t j = 0; j < whole_columns; j += kBlock) {
      internal::Transpose4x4(in + j * ldi + i, ldi, out + i * ldo + j, ldo);
    }
    for (int64_t j = whole_columns; j < columns; ++j) {
      for (int64_t r = i; r < i + kBlock; ++r) out[r * ldo + j] = in[j * ldi + r];
    }
  }
  for (int64_t i = whole_rows; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[i * ldo + j] = in[j * ldi + i];
  }
}

// Sets columns [first, 32) of panel rows to +0.
void ClearPadding(float* panel, int64_t k, int64_t first) {
  for (int64_t i = 0; i < k; ++i) {
    std::fill(panel + i * kPanelColumns + first, panel + (i + 1) * kPanelColumns, 0.0f);
  }
}

}  // namespace

void PackPanels(Pool& pool, const float* rows, int64_t n, int64_t k, float* panels) {
  pool.Run(static_cast<int>(PanelCount(n)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, n - first);
    float* out = panels + first * k;
    Transpose(rows + first * k, k, k, columns, out, kPanelColumns);
    if (columns < kPanelColumns) ClearPadding(out, k, columns);
  });
}

void UnpackPanels(Pool& pool, const float* panels, int64_t n, int64_t k, float* rows) {
  pool.Run(static_cast<int>(PanelCount(n)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, n - first);
    Transpose(panels + first * k, kPanelColumns, columns, k, rows + first * k, k);
  });
}

void TransposePanels(Pool& pool, const float* panels, int64_t n, int64_t k, float* transposed) {
  // Both sides hold the 32 x 32 block (rows 32p.., columns 32q..) of W as one run of memory.
  const int64_t row_blocks = PanelCount(n);
  pool.Run(static_cast<int>(PanelCount(k)), [&](int q) {
    const int64_t first = q * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, k - first);
    float* out = transposed + first * n;
    for (int64_t p = 0; p < row_blocks; ++p) {
      const int64_t rows = std::min(kPanelColumns, n - p * kPanelColumns);
      Transpose(panels + (p * k + first) * kPanelColumns, kPanelColumns, rows, columns,
                out + p * kPanelColumns * kPanelColumns, kPanelColumns);
    }
    if (columns < kPanelColumns) ClearPadding(out, n, columns);
  });
}

void GatherRow(const float* panels, int64_t n, int64_t k, int64_t row, float* out) {
  TITAN_DCHECK(row >= 0 && row < n);
  const float* in = panels + PanelIndex(k, row, 0);
  for (int64_t i = 0; i < k; ++i) out[i] = in[i * kPanelColumns];
}

}  // namespace titan::kernels
