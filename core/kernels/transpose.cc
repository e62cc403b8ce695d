// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/transpose.h"

#include <algorithm>

#include "core/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/transpose.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kLine = 16;  // floats of a cache line, which is read whole before it can be lost

// Lanes of pairs: a0 b0 a1 b1 of each half.
template <class D>
HWY_INLINE void InterleavePairs(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D>* lower,
                                hn::Vec<D>* upper) {
  const hn::RepartitionToWide<D> wide;
  const auto x = hn::BitCast(wide, a), y = hn::BitCast(wide, b);
  *lower = hn::BitCast(d, hn::InterleaveLower(wide, x, y));
  *upper = hn::BitCast(d, hn::InterleaveUpper(wide, x, y));
}

// Rows in[0..3] -> in each 128-bit block, columns out[0..3] of that block.
template <class D>
HWY_INLINE void Transpose4(D d, const hn::Vec<D> (&in)[4], hn::Vec<D> (&out)[4]) {
  InterleavePairs(d, hn::InterleaveLower(d, in[0], in[1]), hn::InterleaveLower(d, in[2], in[3]),
                  &out[0], &out[1]);
  InterleavePairs(d, hn::InterleaveUpper(d, in[0], in[1]), hn::InterleaveUpper(d, in[2], in[3]),
                  &out[2], &out[3]);
}

// One block of kSide x kSide, 4 or 8.
template <int kSide>
HWY_INLINE void TransposeBlock(const float* HWY_RESTRICT in, int64_t ldi, float* HWY_RESTRICT out,
                               int64_t ldo) {
  const hn::FixedTag<float, kSide> d;
  using V = hn::Vec<decltype(d)>;
  if constexpr (kSide == 4) {
    V rows[4], columns[4];
    for (int r = 0; r < 4; ++r) rows[r] = hn::LoadU(d, in + r * ldi);
    Transpose4(d, rows, columns);
    for (int r = 0; r < 4; ++r) hn::StoreU(columns[r], d, out + r * ldo);
  } else {
    V rows[2][4], columns[2][4];
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r) rows[half][r] = hn::LoadU(d, in + (4 * half + r) * ldi);
      Transpose4(d, rows[half], columns[half]);
    }
    for (int r = 0; r < 4; ++r) {
      hn::StoreU(hn::ConcatLowerLower(d, columns[1][r], columns[0][r]), d, out + r * ldo);
      hn::StoreU(hn::ConcatUpperUpper(d, columns[1][r], columns[0][r]), d, out + (r + 4) * ldo);
    }
  }
}

// rows and columns >= kSide. The last blocks of a side overlap those before them.
template <int kSide>
void TransposeBlocks(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
                     int64_t ldo) {
  const auto strip = [&](int64_t first, int64_t last, int64_t j) {
    for (int64_t i = first; i < last; i += kSide) {
      const int64_t at = std::min(i, rows - kSide);
      TransposeBlock<kSide>(in + j * ldi + at, ldi, out + at * ldo + j, ldo);
    }
  };
  for (int64_t first = 0; first < rows; first += kLine) {
    const int64_t last = std::min(rows, first + kLine);
    for (int64_t j = 0; j < columns; j += kSide) strip(first, last, std::min(j, columns - kSide));
  }
}

}  // namespace

void TransposeAny(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
                  int64_t ldo) {
  if (rows >= 8 && columns >= 8) return TransposeBlocks<8>(in, ldi, rows, columns, out, ldo);
  if (rows >= 4 && columns >= 4) return TransposeBlocks<4>(in, ldi, rows, columns, out, ldo);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[i * ldo + j] = in[j * ldi + i];
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels::internal {

void TransposeFloats(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
                     int64_t ldo) {
  TITAN_DISPATCH(TransposeAny)(in, ldi, rows, columns, out, ldo);
}

}  // namespace titan::kernels::internal
#endif  // HWY_ONCE
