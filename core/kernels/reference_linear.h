// SPDX-License-Identifier: Apache-2.0
//
// Scalar twins of linear.h, one output at a time with std::fma on plain row-major matrices: the
// oracle that the kernels are compared with bit by bit. Slow; tests and the digest's own check
// only. The caller sets the numeric environment (isa.h). Pure, any thread.
#ifndef TITAN_CORE_KERNELS_REFERENCE_LINEAR_H_
#define TITAN_CORE_KERNELS_REFERENCE_LINEAR_H_

#include <cstdint>

namespace titan::kernels::reference {

// One output: tree over leaves of the chain over k of fma(x[i], w[i], acc). w has unit stride.
float LinearOutput(const float* x, const float* w, int64_t k, int leaves);

// One step of two products as vdpbf16ps is to make it: acc plus the product of the upper halves
// (bfloat16), rounded, plus the product of the lower halves, rounded.
float DotStep(float acc, uint32_t x, uint32_t w);

// rows[n][k] is w, row-major; otherwise as kernels::Linear.
void Linear(const float* x, int64_t ldx, int64_t m, const float* rows, int64_t n, int64_t k,
            int leaves, const float* bias, float* out, int64_t ldo);

// accumulator[n][k], row-major; otherwise as kernels::LinearWeightGradient.
void LinearWeightGradient(const float* x, int64_t ldx, const float* dy, int64_t ldy, int64_t m,
                          int64_t n, int64_t k, float* accumulator);

void LinearBiasGradient(const float* dy, int64_t ldy, int64_t m, int64_t n, float* accumulator);

}  // namespace titan::kernels::reference

#endif  // TITAN_CORE_KERNELS_REFERENCE_LINEAR_H_
