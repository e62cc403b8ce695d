// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU and elementwise adds: out = silu(gate) * up. Flat arrays of n elements; every output
// depends on one element of each input; parallel over elements.
//
// Forward:  t = 1 + DExp(-g); out = (g / t) * u
// Backward: t = 1 + DExp(-g); s = 1 / t
//   dup   = dout * (g / t)
//   dgate = (dout * u) * (s * fma(g, 1 - s, 1))
#ifndef TITAN_CORE_KERNELS_SWIGLU_H_
#define TITAN_CORE_KERNELS_SWIGLU_H_

#include <cstdint>

namespace titan::kernels {

class Pool;

// out may be gate or up.
void SwiGlu(Pool& pool, int64_t n, const float* gate, const float* up, float* out);
// dgate and dup are written; they may be gate, up or dout (element i is read before it is written).
void SwiGluBackward(Pool& pool, int64_t n, const float* gate, const float* up, const float* dout,
                    float* dgate, float* dup);
// out[i] = a[i] + b[i]: the residual add. out may be a or b.
void Add(Pool& pool, int64_t n, const float* a, const float* b, float* out);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_SWIGLU_H_
