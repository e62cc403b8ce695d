// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "core/kernels/reference_ops.h"

namespace titan::kernels::reference {
namespace {

float Factor(NormKind kind, const float* gain, int64_t i) {
  if (kind == NormKind::kPlain) return 1.0f;
  return kind == NormKind::kGain ? gain[i] : gain[i] + 1.0f;
}

bool GainIsLast(NormKind kind) { return kind == NormKind::kGain || kind == NormKind::kCentredGain; }

// The vector whose mean square is taken.
std::vector<float> Normed(NormKind kind, const float* x, int64_t width, const float* gain) {
  std::vector<float> v(x, x + width);
  if (kind == NormKind::kGainFirst) {
    for (int64_t i = 0; i < width; ++i) v[static_cast<size_t>(i)] *= Factor(kind, gain, i);
  }
  return v;
}

}  // namespace

void RmsNorm(const float* x, int64_t rows, int64_t width, const float* gain, float eps, float* out,
             float* inv_rms, const NormShape& shape) {
  for (int64_t r = 0; r < rows * shape.heads; ++r) {
    const std::vector<float> v = Normed(shape.kind, x + r * width, width, gain);
    const float ss = RowSumProduct(v.data(), v.data(), width);
    const float inv = 1.0f / std::sqrt(ss / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; ++i) {
      const float scaled = v[static_cast<size_t>(i)] * inv;
      out[r * width + i] = GainIsLast(shape.kind) ? scaled * Factor(shape.kind, gain, i) : scaled;
    }
    if (inv_rms != nullptr) inv_rms[r] = inv;
  }
}

void RmsNormBackward(const float* x, int64_t rows, int64_t width, const float* gain,
                     const float* inv_rms, const float* dy, float* dx,
                     std::span<const RowRange> units, float* dgain, const NormShape& shape) {
  const bool first = shape.kind == NormKind::kGainFirst;
  const int64_t heads = shape.heads;
  std::vector<float> dv(static_cast<size_t>(rows * heads * width)), a(static_cast<size_t>(width));
  for (int64_t r = 0; r < rows * heads; ++r) {
    const std::vector<float> v = Normed(shape.kind, x + r * width, width, gain);
    for (int64_t i = 0; i < width; ++i) {
      const float d = dy[r * width + i];
      a[static_cast<size_t>(i)] = GainIsLast(shape.kind) ? d * Factor(shape.kind, gain, i) : d;
    }
    const float dot = RowSumProduct(a.data(), v.data(), width);
    const float inv = inv_rms[r];
    const float c = (dot / static_cast<float>(width)) * (inv * inv);
    for (int64_t i = 0; i < width; ++i) {
      const size_t j = static_cast<size_t>(i);
      dv[static_cast<size_t>(r * width + i)] = inv * std::fma(-c, v[j], a[j]);
    }
  }
  if (dgain != nullptr) {
    for (const RowRange& unit : units) {
      for (int64_t i = 0; i < width; ++i) {
        float sum = 0.0f;
        for (int64_t h = 0; h < heads; ++h) {
          float chain = 0.0f;
          for (int64_t t = unit.begin; t < unit.end; ++t) {
            const int64_t at = (t * heads + h) * width + i;
            chain = first ? std::fma(dv[static_cast<size_t>(at)], x[at], chain)
                          : std::fma(dy[at], x[at] * inv_rms[t * heads + h], chain);
          }
          sum = h == 0 ? chain : sum + chain;
        }
        dgain[i] = dgain[i] + sum;
      }
    }
  }
  for (int64_t i = 0; i < rows * heads * width; ++i) {
    const float d = dv[static_cast<size_t>(i)];
    dx[i] = first ? d * Factor(shape.kind, gain, i % width) : d;
  }
}

}  // namespace titan::kernels::reference
