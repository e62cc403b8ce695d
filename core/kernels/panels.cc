// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/panels.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/base/check.h"
#include "core/kernels/tile.h"
#include "core/kernels/transpose.h"

namespace titan::kernels {
namespace internal {

const float* AsFloats(const BFloat16* panel, int64_t k0, int64_t count, float* buffer) {
  const BFloat16* pairs = panel + k0 * kPanelColumns;
  const auto word_at = [pairs](int64_t i) {
    uint32_t word;
    std::memcpy(&word, pairs + 2 * i, sizeof(word));
    return word;
  };
  for (int64_t pair = 0; pair < count / 2; ++pair) {
    float* out = buffer + pair * 2 * kPanelColumns;
    for (int64_t j = 0; j < kPanelColumns; ++j) {
      const uint32_t word = word_at(pair * kPanelColumns + j);
      out[j] = std::bit_cast<float>(word & 0xffff0000u);
      out[kPanelColumns + j] = std::bit_cast<float>(word << 16);
    }
  }
  if (count % 2 != 0) {
    const int64_t last = count / 2 * kPanelColumns;
    for (int64_t j = 0; j < kPanelColumns; ++j) {
      buffer[2 * last + j] = std::bit_cast<float>(word_at(last + j) & 0xffff0000u);
    }
  }
  return buffer;
}

}  // namespace internal

namespace {

using internal::AsFloats;
using internal::TransposeFloats;

constexpr int64_t kSteps = 64;  // of k at once, even: a block of them as floats stays in the cache

// Sets columns [first, 32) of panel rows to +0.
void ClearPadding(float* panel, int64_t k, int64_t first) {
  for (int64_t i = 0; i < k; ++i) {
    std::fill(panel + i * kPanelColumns + first, panel + (i + 1) * kPanelColumns, 0.0f);
  }
}

// floats [count][32] -> pairs, rounded; an odd count is padded with -0. False: one is not finite.
bool RoundBlock(const float* floats, int64_t count, BFloat16* pairs) {
  uint32_t bad = 0;
  const auto round = [&bad](float x) -> uint32_t {
    const uint32_t bits = RoundToBf16(x).bits;
    bad |= (bits & 0x7f80u) == 0x7f80u ? 1u : 0u;
    return bits;
  };
  for (int64_t i = 0; i < count; i += 2) {
    const float* even = floats + i * kPanelColumns;
    const float* odd = even + kPanelColumns;
    const bool padded = i + 1 == count;
    uint32_t words[kPanelColumns];
    for (int64_t j = 0; j < kPanelColumns; ++j) words[j] = round(even[j]) << 16;
    for (int64_t j = 0; j < kPanelColumns; ++j) words[j] |= padded ? 0x8000u : round(odd[j]);
    std::memcpy(pairs + i * kPanelColumns, words, sizeof(words));
  }
  return bad == 0;
}

// W[n][k] in panels of type W -> rows.
template <typename W>
void UnpackPanel(const W* panel, int64_t columns, int64_t k, float* rows) {
  float buffer[kSteps * kPanelColumns];
  for (int64_t k0 = 0; k0 < k; k0 += kSteps) {
    const int64_t count = std::min(kSteps, k - k0);
    TransposeFloats(AsFloats(panel, k0, count, buffer), kPanelColumns, columns, count, rows + k0,
                    k);
  }
}

}  // namespace

void PackPanels(Pool& pool, const float* rows, int64_t n, int64_t k, float* panels) {
  pool.Run(static_cast<int>(PanelCount(n)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, n - first);
    float* out = panels + first * k;
    TransposeFloats(rows + first * k, k, k, columns, out, kPanelColumns);
    if (columns < kPanelColumns) ClearPadding(out, k, columns);
  });
}

bool PackPanels(Pool& pool, const float* rows, int64_t n, int64_t k, BFloat16* panels) {
  std::atomic<bool> finite{true};
  pool.Run(static_cast<int>(PanelCount(n)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, n - first);
    BFloat16* out = panels + first * PanelDepth(Element::kBf16, k);
    float buffer[kSteps * kPanelColumns];
    for (int64_t k0 = 0; k0 < k; k0 += kSteps) {
      const int64_t count = std::min(kSteps, k - k0);
      TransposeFloats(rows + first * k + k0, k, count, columns, buffer, kPanelColumns);
      if (columns < kPanelColumns) ClearPadding(buffer, count, columns);
      if (!RoundBlock(buffer, count, out + k0 * kPanelColumns)) {
        finite.store(false, std::memory_order_relaxed);
      }
    }
  });
  return finite.load();
}

bool RoundPanels(Pool& pool, const float* panels, int64_t n, int64_t k, BFloat16* rounded) {
  std::atomic<bool> finite{true};
  pool.Run(static_cast<int>(PanelCount(n)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    if (!RoundBlock(panels + first * k, k, rounded + first * PanelDepth(Element::kBf16, k))) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite.load();
}

void UnpackPanels(Pool& pool, ConstPanels panels, int64_t n, int64_t k, float* rows) {
  pool.Run(static_cast<int>(PanelCount(n)), [&](int panel) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, n - first);
    panels.Visit([&](const auto* data) {
      UnpackPanel(data + first * PanelDepth(panels.element(), k), columns, k, rows + first * k);
    });
  });
}

void TransposePanels(Pool& pool, ConstPanels panels, int64_t n, int64_t k, float* transposed) {
  // Both sides hold the 32 x 32 block (rows 32p.., columns 32q..) of W as one run of memory.
  const int64_t row_blocks = PanelCount(n), depth = PanelDepth(panels.element(), k);
  pool.Run(static_cast<int>(PanelCount(k)), [&](int q) {
    const int64_t first = q * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, k - first);
    float* out = transposed + first * n;
    float buffer[kPanelColumns * kPanelColumns];
    for (int64_t p = 0; p < row_blocks; ++p) {
      const int64_t rows = std::min(kPanelColumns, n - p * kPanelColumns);
      const float* block = panels.Visit([&](const auto* data) {
        return AsFloats(data + p * depth * kPanelColumns, first, columns, buffer);
      });
      TransposeFloats(block, kPanelColumns, rows, columns, out + p * kPanelColumns * kPanelColumns,
                      kPanelColumns);
    }
    if (columns < kPanelColumns) ClearPadding(out, n, columns);
  });
}

void GatherRow(ConstPanels panels, int64_t n, int64_t k, int64_t row, float* out) {
  TITAN_DCHECK(row >= 0 && row < n);
  if (panels.element() == Element::kF32) {
    const float* in = panels.f32() + PanelIndex(k, row, 0);
    for (int64_t i = 0; i < k; ++i) out[i] = in[i * kPanelColumns];
  } else {
    for (int64_t i = 0; i < k; ++i) out[i] = ToFloat(panels.bf16()[Bf16PanelIndex(k, row, i)]);
  }
}

}  // namespace titan::kernels
