// SPDX-License-Identifier: Apache-2.0
//
// Softplus, of which the decay of a gated delta rule is made: out = log(1 + e^x). Flat arrays of n
// elements; every output depends on one element of each input; parallel over elements.
//
// Forward:  DSoftplus(x)
// Backward: dx = dout / (1 + DExp(-x)), the sigmoid of swiglu.h (within 3 ulp)
#ifndef TITAN_CORE_KERNELS_SOFTPLUS_H_
#define TITAN_CORE_KERNELS_SOFTPLUS_H_

#include <cstdint>

namespace titan::kernels {

class Pool;

// out may be x.
void Softplus(Pool& pool, int64_t n, const float* x, float* out);
// dx is written; it may be x or dout.
void SoftplusBackward(Pool& pool, int64_t n, const float* x, const float* dout, float* dx);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_SOFTPLUS_H_
