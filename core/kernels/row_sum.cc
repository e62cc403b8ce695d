// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/row_sum.h"

#include "core/kernels/reference_ops.h"

namespace titan::kernels {

float RowSum(const float* x, int64_t n) { return reference::RowSum(x, n); }
float RowSumProduct(const float* a, const float* b, int64_t n) {
  return reference::RowSumProduct(a, b, n);
}

}  // namespace titan::kernels
