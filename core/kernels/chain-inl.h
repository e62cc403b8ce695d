// SPDX-License-Identifier: Apache-2.0
//
// One primitive of kernels that are small matrix products in chain order, for one Highway target;
// included between the target guards like elementary-inl.h, after it.
#if defined(TITAN_CORE_KERNELS_CHAIN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TITAN_CORE_KERNELS_CHAIN_INL_H_
#undef TITAN_CORE_KERNELS_CHAIN_INL_H_
#else
#define TITAN_CORE_KERNELS_CHAIN_INL_H_
#endif

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// Columns [i, i + kVectors * kLanes) of Chain, all of which exist.
template <int kVectors>
HWY_INLINE void ChainBlock(const float* factors, int64_t factor_stride, const float* rows,
                           int64_t row_stride, int64_t count, float* out) {
  FloatVec sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = Load(out + v * kLanes);
  for (int64_t r = 0; r < count; ++r) {
    const FloatVec factor = Broadcast(factors[r * factor_stride]);
    const float* row = rows + r * row_stride;
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = hn::MulAdd(factor, Load(row + v * kLanes), sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) Store(sums[v], out + v * kLanes);
}

// out[i] = chain over r in [0, count) ascending of fma(factors[r], rows[r][i], out[i]), i < width.
inline void Chain(const float* factors, int64_t factor_stride, const float* rows,
                  int64_t row_stride, int64_t count, int64_t width, float* out) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    ChainBlock<4>(factors, factor_stride, rows + i, row_stride, count, out + i);
  }
  for (; i + kLanes <= width; i += kLanes) {
    ChainBlock<1>(factors, factor_stride, rows + i, row_stride, count, out + i);
  }
  if (i == width) return;
  FloatVec sum = LoadPart(out + i, width - i);
  for (int64_t r = 0; r < count; ++r) {
    sum = hn::MulAdd(Broadcast(factors[r * factor_stride]),
                     LoadPart(rows + r * row_stride + i, width - i), sum);
  }
  StorePart(sum, out + i, width - i);
}

// The same from +0.
inline void ChainFromZero(const float* factors, int64_t factor_stride, const float* rows,
                          int64_t row_stride, int64_t count, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = 0.0f;
  Chain(factors, factor_stride, rows, row_stride, count, width, out);
}

// out[i] = x[i] * factor.
inline void Scale(const float* x, float factor, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    StorePart(hn::Mul(LoadPart(x + i, width - i), Broadcast(factor)), out + i, width - i);
  }
}

// out[i] = x[i] * y[i].
inline void Multiply(const float* x, const float* y, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    StorePart(hn::Mul(LoadPart(x + i, width - i), LoadPart(y + i, width - i)), out + i, width - i);
  }
}

// out[i] = DExp(top - x[i]).
inline void ExpBelow(float top, const float* x, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    StorePart(VExp(hn::Sub(Broadcast(top), LoadPart(x + i, width - i))), out + i, width - i);
  }
}

// rows [count][width] -> out [width][stride], the first `count` columns of it.
inline void Transpose(const float* rows, int64_t row_stride, int64_t count, int64_t width,
                      int64_t stride, float* out) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t i = 0; i < width; ++i) out[i * stride + r] = rows[r * row_stride + i];
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#endif  // TITAN_CORE_KERNELS_CHAIN_INL_H_
