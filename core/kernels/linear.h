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
// Outputs may not overlap inputs or each other. Pointers need no alignment. Working memory is kept
// per calling thread and per thread of the pool, and reused.
#ifndef TITAN_CORE_KERNELS_LINEAR_H_
#define TITAN_CORE_KERNELS_LINEAR_H_

#include <cstdint>
#include <span>

#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::kernels {

// Rows that are made of others (by a norm, a gate) when a product needs them: make(pool, x) writes
// x[m][k], on the pool given. A few rows are made by every thread for itself, at the same time, so
// that threads meet once less and no row goes from one core to another; more are made into `x`.
struct MadeRows {
  FunctionRef<void(Pool& pool, float* x)> make;  // what it reads is no output of the product
  float* x = nullptr;
};

// Rows x[m][k] (stride ldx >= k) and how they enter a product. m may be 0. With Inputs::kBf16 they
// are rounded first.
struct LinearRows {
  const float* x = nullptr;
  int64_t ldx = 0;
  int64_t m = 0;
  int64_t k = 0;
  Inputs inputs = Inputs::kF32;
  const MadeRows* made = nullptr;  // in place of x, for Linear alone
};

// A weight matrix w[n][k] that rows are multiplied with, and where the product goes.
struct LinearMatrix {
  ConstPanels panels;
  int64_t n = 0;
  int leaves = 1;
  const float* bias = nullptr;  // [n], or null
  float* out = nullptr;         // [m][n] (stride ldo >= n); floats between n and ldo are left alone
  int64_t ldo = 0;
  // [m][n] (stride ldo) or null; `out` itself or apart from it. Then
  // out[m][n] = addend[m][n] + (the product + its bias).
  const float* addend = nullptr;
};

// The products of the same rows with all the matrices: a thread packs its rows once and the threads
// meet once. Each output has the bits of a call of its own.
// REQUIRES: k > 0, leaves in {1, 2, 4, 8}, k % leaves == 0; panels of one element type; with
// bfloat16 and several leaves, k / leaves even (LeafCount gives no other); with Inputs::kBf16,
// bfloat16 panels.
void Linear(Pool& pool, const LinearRows& rows, std::span<const LinearMatrix> matrices);
inline void Linear(Pool& pool, const LinearRows& rows, const LinearMatrix& matrix) {
  Linear(pool, rows, std::span(&matrix, 1));
}

// Rows that have matrices of their own.
struct LinearGroup {
  LinearRows rows;  // not made of others
  std::span<const LinearMatrix> matrices;
};

// The products of every group, as of Linear: an expert's rows and its matrices are a group. The
// threads meet once for all of them. REQUIRES: those of Linear; the same k, inputs and type of
// element in all groups.
void LinearGroups(Pool& pool, std::span<const LinearGroup> groups);

// One product of LinearSum: x[m][k] (stride ldx >= k) with f32 panels of w[n][k].
struct LinearTerm {
  const float* x = nullptr;
  int64_t ldx = 0;
  int64_t k = 0;
  const float* panels = nullptr;
  int leaves = 1;
};

// out[m][n] = ((term 0 + term 1) + term 2) + ..., each term a product as of Linear. The input
// gradient is this function with x = dy[m][n], the transposed panels, n and k swapped and leaves =
// LeafCount(n, .); of matrices that share their rows, the gradients join in the terms' order.
// REQUIRES: a term; those of Linear.
void LinearSum(Pool& pool, int64_t m, std::span<const LinearTerm> terms, int64_t n, float* out,
               int64_t ldo);

// dy[m][n] (stride ldy) of a matrix w[n][k], and its gradient's accumulator in the panels layout.
struct LinearGradient {
  const float* dy = nullptr;
  int64_t ldy = 0;
  int64_t n = 0;
  float* panels_accumulator = nullptr;
};

// Weight gradients of ONE unit for matrices that share their rows: for each weight, chain over the
// m rows upward from +0 of fma(x[row][k], dy[row][n], acc); then accumulator = accumulator + chain.
// Pad columns of the accumulators stay as they are.
void LinearWeightGradient(Pool& pool, const LinearRows& rows,
                          std::span<const LinearGradient> gradients);
inline void LinearWeightGradient(Pool& pool, const LinearRows& rows,
                                 const LinearGradient& gradient) {
  LinearWeightGradient(pool, rows, std::span(&gradient, 1));
}

// Floats that a calling thread keeps for LinearWeightGradient of m rows and matrices with n outputs
// together.
int64_t LinearWeightGradientScratchFloats(int64_t m, int64_t k, int64_t n);

// Bias gradient of ONE unit: chain over the m rows upward from +0 of acc + dy[row][n]; then
// accumulator[n] = accumulator[n] + chain.
void LinearBiasGradient(Pool& pool, const float* dy, int64_t ldy, int64_t m, int64_t n,
                        float* accumulator);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_LINEAR_H_
