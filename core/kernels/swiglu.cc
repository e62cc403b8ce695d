// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/swiglu.h"

#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"
#include "core/kernels/units.h"

namespace titan::kernels {

void SwiGlu(Pool& pool, int64_t n, const float* gate, const float* up, float* out) {
  pool.Run(1, [&](int) { reference::SwiGlu(n, gate, up, out); });
}

void SwiGluBackward(Pool& pool, int64_t n, const float* gate, const float* up, const float* dout,
                    float* dgate, float* dup) {
  pool.Run(1, [&](int) { reference::SwiGluBackward(n, gate, up, dout, dgate, dup); });
}

void Add(Pool& pool, int64_t n, const float* a, const float* b, float* out) {
  pool.Run(1, [&](int) {
    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
  });
}

void AddInto(Pool& pool, int64_t n, float* left, const float* right) {
  Add(pool, n, left, right, left);
}

}  // namespace titan::kernels
