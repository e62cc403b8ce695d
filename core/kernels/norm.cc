// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/norm.h"

#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels {

void RmsNorm(Pool& pool, const float* x, int64_t rows, int64_t hidden, const float* gain, float eps,
             float* out, float* inv_rms) {
  pool.Run(1, [&](int) { reference::RmsNorm(x, rows, hidden, gain, eps, out, inv_rms); });
}

void RmsNormBackward(Pool& pool, const float* x, int64_t rows, int64_t hidden, const float* gain,
                     const float* inv_rms, const float* dy, float* dx,
                     std::span<const RowRange> units, float* dgain) {
  pool.Run(1, [&](int) {
    reference::RmsNormBackward(x, rows, hidden, gain, inv_rms, dy, dx, units, dgain);
  });
}

}  // namespace titan::kernels
