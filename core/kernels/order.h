// SPDX-License-Identifier: Apache-2.0
//
// The constants of the defined order and the leaf rule of a linear's reduction. They are part of
// the contract digest: a change here changes the bits of every log-prob and gradient. Pure, any
// thread.
#ifndef TITAN_CORE_KERNELS_ORDER_H_
#define TITAN_CORE_KERNELS_ORDER_H_

#include <cstdint>

namespace titan::kernels {

inline constexpr int64_t kPanelColumns = 32;  // columns of one weight panel
inline constexpr int64_t kRowSumChunk =
    1024;                                    // elements of one row-sum chunk; vocabulary shards too
inline constexpr int64_t kRowSumLanes = 64;  // lanes of the row sum and of an attention key block
inline constexpr int64_t kKeyBlock = 64;     // keys of one online-softmax block
inline constexpr int64_t kKeySegment = 512;  // keys of one merged segment
inline constexpr int64_t kPageTokens = 16;   // tokens of one cache page
inline constexpr int64_t kUnitTokens = 1024;  // tokens that close a gradient unit
inline constexpr int kMaxLeaves = 8;
inline constexpr int64_t kMinLeafLength = 256;

// Leaves of a linear whose reduced axis has k elements: the largest power of two <= 8 that divides
// k into even parts of at least 256, each a multiple of head_dim where the axis is concatenated
// heads (head_dim = 0: it is not). 1 when there is none.
constexpr int LeafCount(int64_t k, int64_t head_dim) {
  for (int leaves = kMaxLeaves; leaves > 1; leaves /= 2) {
    if (k % leaves != 0) continue;
    const int64_t length = k / leaves;
    if (length % 2 != 0 || length < kMinLeafLength) continue;
    if (head_dim > 0 && length % head_dim != 0) continue;
    return leaves;
  }
  return 1;
}

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_ORDER_H_
