// SPDX-License-Identifier: Apache-2.0
//
// The execution layouts of a weight matrix W[N][K] (out features, in features). One vector holds 32
// consecutive outputs at one k; the same bytes serve every instruction set.
//
//   "panels32", f32:     panels[ceil(N/32)][K][32]
//                        element (n, k) at ((n / 32) * K + k) * 32 + n % 32
//   "panels32k2", bf16:  panels[ceil(N/32)][ceil(K/2)][32][2], pairs along k, the even k in the
//   upper
//                        half of its 32-bit word (so one AND or one shift upconverts a vector of
//                        them) element (n, k) at ((n / 32) * ceil(K/2) + k / 2) * 64 + n % 32 * 2 +
//                        1 - k % 2
//
// Pad columns (n >= N of the last panel) are +0; the pad half of an odd K is -0 in every column.
// Gradients use panels32. Pointers need no alignment; 64-byte alignment is faster. Values are moved
// bit for bit, but for the conversions to bf16, which round as bf16.h says; from bf16 to f32 is
// exact. Parallel over panels; no overlap of inputs and outputs.
#ifndef TITAN_CORE_KERNELS_PANELS_H_
#define TITAN_CORE_KERNELS_PANELS_H_

#include <cstdint>
#include <type_traits>

#include "core/kernels/bf16.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"

namespace titan::kernels {

// Type of a weight's elements; it decides the layout of a matrix.
enum class Element : uint8_t { kF32, kBf16 };

constexpr int64_t ElementBytes(Element element) { return element == Element::kF32 ? 4 : 2; }

template <typename W>
inline constexpr Element kElementOf = std::is_same_v<W, BFloat16> ? Element::kBf16 : Element::kF32;

constexpr int64_t PanelCount(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }

// Steps of k in a panel, the pad of an odd k included.
constexpr int64_t PanelDepth(Element element, int64_t k) {
  return element == Element::kF32 ? k : k + k % 2;
}

// Elements of the panels of W[n][k], padding included.
constexpr int64_t PanelElements(Element element, int64_t n, int64_t k) {
  return PanelCount(n) * kPanelColumns * PanelDepth(element, k);
}
constexpr int64_t PanelFloats(int64_t n, int64_t k) { return PanelElements(Element::kF32, n, k); }

// Index of W[row][column] in the panels of W[n][k].
constexpr int64_t PanelIndex(int64_t k, int64_t row, int64_t column) {
  return ((row / kPanelColumns) * k + column) * kPanelColumns + row % kPanelColumns;
}
constexpr int64_t Bf16PanelIndex(int64_t k, int64_t row, int64_t column) {
  return ((row / kPanelColumns) * ((k + 1) / 2) + column / 2) * 2 * kPanelColumns +
         row % kPanelColumns * 2 + 1 - column % 2;
}

// A borrowed weight matrix in the execution layout of its element type: what kernels read.
class ConstPanels {
 public:
  ConstPanels() = default;
  ConstPanels(const float* data) : data_(data) {}  // NOLINT: implicit, a pointer with its type
  ConstPanels(const BFloat16* data) : data_(data), element_(Element::kBf16) {}  // NOLINT
  // `data` is of that type.
  ConstPanels(const void* data, Element element) : data_(data), element_(element) {}

  Element element() const { return element_; }
  const void* data() const { return data_; }
  const float* f32() const { return static_cast<const float*>(data_); }
  const BFloat16* bf16() const { return static_cast<const BFloat16*>(data_); }

  // Calls function(pointer) with the pointer's own type: how a kernel becomes one source for every
  // type.
  template <typename Function>
  decltype(auto) Visit(const Function& function) const {
    return element_ == Element::kF32 ? function(f32()) : function(bf16());
  }

 private:
  const void* data_ = nullptr;
  Element element_ = Element::kF32;
};

// rows[n][k] row-major -> panels.
void PackPanels(Pool& pool, const float* rows, int64_t n, int64_t k, float* panels);
// The same, rounded. False: a value is not finite as bf16 (all are written).
[[nodiscard]] bool PackPanels(Pool& pool, const float* rows, int64_t n, int64_t k,
                              BFloat16* panels);

// panels32 -> panels32k2 of the same matrix, rounded; pad columns are taken as they are. False: a
// value is not finite as bf16 (all are written).
[[nodiscard]] bool RoundPanels(Pool& pool, const float* panels, int64_t n, int64_t k,
                               BFloat16* rounded);

// panels -> rows[n][k] row-major; padding is not read.
void UnpackPanels(Pool& pool, ConstPanels panels, int64_t n, int64_t k, float* rows);

// Panels of W[n][k] -> panels32 of the transposed matrix [k][n], for the input gradient.
void TransposePanels(Pool& pool, ConstPanels panels, int64_t n, int64_t k, float* transposed);

// out[k] = W[row][.], for example one token's embedding.
void GatherRow(ConstPanels panels, int64_t n, int64_t k, int64_t row, float* out);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_PANELS_H_
