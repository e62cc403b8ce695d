// SPDX-License-Identifier: Apache-2.0
//
// Linear layers in the defined order (numerics contract, sections 2 and 7). Activations are f32;
// weights are f32 (mode F32) or bfloat16 upconverted exactly inside the tile (mode W16): the bits
// of F32 on the upconverted weights. In mode BF16 (bfloat16 weights, Inputs::kBf16) x is rounded to
// bfloat16 while it is packed: the bits of W16 on the rounded x, by vdpbf16ps where the CPU has it
// and it was admitted (dot.h).
//
//   out[m][n] = TREE over leaves g of CHAIN over k in leaf g of fma(x[m][k], w[n][k], acc)
//
// K is cut into `leaves` equal contiguous leaves (LeafCount in order.h). A chain starts at +0 and
// runs strictly upward in k; the leaves are added as a balanced binary tree, left + right; then the
// bias. Nothing else about the call (m, position of a row, threads, instruction set) takes part, so
// a row's bits are its own. NaN and infinity flow as IEEE says.
//
// Thread-safety: calls from several threads are fine with a pool each. Strides count floats.
// Outputs may not overlap inputs. Pointers need no alignment. Working memory is kept per calling
// thread and reused.
#ifndef TITAN_CORE_KERNELS_LINEAR_H_
#define TITAN_CORE_KERNELS_LINEAR_H_

#include <cstdint>

#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::kernels {

// x[m][k] (stride ldx >= k), panels of w[n][k] (panels.h), bias[n] or null -> out[m][n] (stride
// ldo >= n). Floats between n and ldo are left alone. m may be 0. The input gradient is this
// function with x = dy[m][n], the transposed panels, n and k swapped and leaves = LeafCount(n, .).
// REQUIRES: k > 0, leaves in {1, 2, 4, 8}, k % leaves == 0; with bfloat16 and several leaves, k /
// leaves even (LeafCount gives no other); with Inputs::kBf16, bfloat16 panels.
void Linear(Pool& pool, const float* x, int64_t ldx, int64_t m, ConstPanels panels, int64_t n,
            int64_t k, int leaves, const float* bias, float* out, int64_t ldo,
            Inputs inputs = Inputs::kF32);

// Weight gradient of ONE unit: for each weight, chain over the m rows upward from +0 of
// fma(x[row][k], dy[row][n], acc); then accumulator = accumulator + chain. The accumulator has the
// panels layout of w[n][k]; its pad columns stay as they are. x[m][k] stride ldx, rounded first
// with Inputs::kBf16; dy[m][n] stride ldy.
void LinearWeightGradient(Pool& pool, const float* x, int64_t ldx, const float* dy, int64_t ldy,
                          int64_t m, int64_t n, int64_t k, float* panels_accumulator,
                          Inputs inputs = Inputs::kF32);

// Bias gradient of ONE unit: chain over the m rows upward from +0 of acc + dy[row][n]; then
// accumulator[n] = accumulator[n] + chain.
void LinearBiasGradient(Pool& pool, const float* dy, int64_t ldy, int64_t m, int64_t n,
                        float* accumulator);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_LINEAR_H_
