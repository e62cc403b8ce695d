// SPDX-License-Identifier: Apache-2.0
//
// Internal to core/kernels: the transposition under every packing of rows, panels and pages. Values
// move bit for bit. Any thread.
#ifndef TITAN_CORE_KERNELS_TRANSPOSE_H_
#define TITAN_CORE_KERNELS_TRANSPOSE_H_

#include <cstdint>

namespace titan::kernels::internal {

// out[i][j] (stride ldo) = in[j][i] (stride ldi) for i < rows, j < columns; nothing else is read or
// written. Pointers need no alignment; no overlap.
void TransposeFloats(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
                     int64_t ldo);

}  // namespace titan::kernels::internal

#endif  // TITAN_CORE_KERNELS_TRANSPOSE_H_
