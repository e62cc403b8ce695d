// SPDX-License-Identifier: Apache-2.0
//
// The gate of Gemma: out = gelu(gate) * up with the tanh form of gelu, and a plain scaling. Flat
// arrays of n elements; every output depends on one element of each input; parallel over elements.
//
// Forward:  q = g * g; t = DTanh((g * kGeluRoot) * fma(q, kGeluCubic, 1)); h = 0.5 * g;
//           y = fma(h, t, h); out = y * u
// Backward: dup = dout * y;
//           slope = fma(0.5, t, 0.5) + (h * fma(-t, t, 1)) * (kGeluRoot * fma(q, 3 kGeluCubic, 1))
//           dgate = (dout * u) * slope
#ifndef TITAN_CORE_KERNELS_GELU_H_
#define TITAN_CORE_KERNELS_GELU_H_

#include <cstdint>

namespace titan::kernels {

class Pool;

inline constexpr float kGeluRoot = 0x1.988454p-1f;    // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0x1.6e4e26p-5f;   // 0.044715
inline constexpr float kGeluCubic3 = 0x1.12ba9ep-3f;  // 3 * 0.044715

// out may be gate or up.
void GeluGlu(Pool& pool, int64_t n, const float* gate, const float* up, float* out);
// dgate and dup are written; they may be gate, up or dout.
void GeluGluBackward(Pool& pool, int64_t n, const float* gate, const float* up, const float* dout,
                     float* dgate, float* dup);
// x[i] = x[i] * factor.
void ScaleBy(Pool& pool, int64_t n, float factor, float* x);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_GELU_H_
