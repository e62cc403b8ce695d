// SPDX-License-Identifier: Apache-2.0
//
// "panels32", the execution layout of a weight matrix W[N][K] (out features, in features) in f32:
//
//   panels[ceil(N/32)][K][32]     element (row n, column k) at ((n / 32) * K + k) * 32 + n % 32
//
// so that one vector holds 32 consecutive outputs at one k. Pad columns (n >= N of the last panel)
// are +0. The same bytes serve every instruction set. Gradients of such a matrix use the layout
// too. Pointers need no alignment; 64-byte alignment is faster. Nothing here rounds: values are
// moved bit for bit.
#ifndef TITAN_CORE_KERNELS_PANELS_H_
#define TITAN_CORE_KERNELS_PANELS_H_

#include <cstdint>

#include "core/kernels/order.h"
#include "core/kernels/pool.h"

namespace titan::kernels {

constexpr int64_t PanelCount(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }

// Floats of the panels of W[n][k], padding included.
constexpr int64_t PanelFloats(int64_t n, int64_t k) { return PanelCount(n) * kPanelColumns * k; }

// Index of W[row][column] in the panels of W[n][k].
constexpr int64_t PanelIndex(int64_t k, int64_t row, int64_t column) {
  return ((row / kPanelColumns) * k + column) * kPanelColumns + row % kPanelColumns;
}

// rows[n][k] row-major -> panels. No overlap.
void PackPanels(Pool& pool, const float* rows, int64_t n, int64_t k, float* panels);

// panels -> rows[n][k] row-major; padding is not read. No overlap.
void UnpackPanels(Pool& pool, const float* panels, int64_t n, int64_t k, float* rows);

// Panels of W[n][k] -> panels of the transposed matrix [k][n], for the input gradient. No overlap.
void TransposePanels(Pool& pool, const float* panels, int64_t n, int64_t k, float* transposed);

// out[k] = W[row][.], for example one token's embedding.
void GatherRow(const float* panels, int64_t n, int64_t k, int64_t row, float* out);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_PANELS_H_
