// SPDX-License-Identifier: Apache-2.0
//
// Internal to core/kernels: products of bfloat16 rows with bfloat16 panels by AVX512_BF16's
// vdpbf16ps. It takes two steps of a chain at once: acc + the product of the upper halves, rounded,
// then + the product of the lower halves, rounded; denormals are zeros. With the even k in the
// upper half those are the chain's own steps, so it gives the bits of the tile kernels on the
// upconverted operands. Whether this machine's instruction does so, and whether its conversion
// rounds as ours, is found out before they are used: the probe. Which of the two runs is speed
// only, logged and in no contract.
//
// All functions but SetIsa's are pure and for any thread. The kernels run in the numeric
// environment (isa.h).
#ifndef TITAN_CORE_KERNELS_DOT_H_
#define TITAN_CORE_KERNELS_DOT_H_

#include <cstdint>

#include "core/kernels/bf16.h"
#include "core/kernels/isa.h"
#include "core/kernels/panels.h"
#include "core/kernels/tile.h"

namespace titan::kernels::internal {

// acc[16] advanced by one instruction on x[16] and w[16], pairs of bfloat16.
using DotStep16 = void (*)(const uint32_t* x, const uint32_t* w, float* acc);

// True when `step` has the bits of the defined steps (reference::DotStep) on canned operands: wide
// exponents, sums that cancel, results near and below the least normal number, denormals, zeros of
// both signs, overflow. Takes about a millisecond.
bool DotStepIsAsDefined(DotStep16 step);

// pairs[16] of x[32], rounded as bf16.h says, the even k in the upper half.
using RoundPairs16 = void (*)(const float* x, uint32_t* pairs);

// True when `round` has those bits for every sign, exponent and leading bits of the fraction, NaN
// among them, with what is cut off below, at and above the middle. Takes about a millisecond.
bool RoundingIsAsDefined(RoundPairs16 round);

// The CPU and the system have AVX-512 (isa.h) with AVX512_BF16.
bool CpuHasDot();
// vdpbf16ps itself, and vcvtne2ps2bf16 with canonical NaNs. REQUIRES: CpuHasDot().
void HardwareDotStep16(const uint32_t* x, const uint32_t* w, float* acc);
void HardwareRoundPairs16(const float* x, uint32_t* pairs);
// All of it: what isa.h admits. Probed once.
bool DotIsAdmitted();

// REQUIRES: DotIsAdmitted().
const WeightTile<BFloat16, Bf16Pair>& DotTile();

// x[rows][k] (stride ldx) rounded -> packed[ceil(k / 2)][rows]. REQUIRES: DotIsAdmitted().
void PackPairs(const float* x, int64_t ldx, int rows, int64_t k, Bf16Pair* packed);

inline void PackRowsAs(Inputs inputs, const float* x, int64_t ldx, int rows, int64_t k,
                       float* packed) {
  PackRows(x, ldx, rows, k, packed, inputs);
}
inline void PackRowsAs(Inputs, const float* x, int64_t ldx, int rows, int64_t k, Bf16Pair* packed) {
  PackPairs(x, ldx, rows, k, packed);
}

// Scratch::kRows as elements of packed rows.
template <typename A>
A* ScratchRows(int64_t elements) {
  static_assert(sizeof(A) == sizeof(float));
  return reinterpret_cast<A*>(ScratchFloats(Scratch::kRows, elements));
}

// Calls function(tile, pointer) with the tile kernels that run these operands and the panels' own
// pointer: how a kernel becomes one source for every mode.
template <typename Function>
void VisitTile(ConstPanels panels, Inputs inputs, const Function& function) {
  if (inputs == Inputs::kBf16 && DotInUse()) return function(DotTile(), panels.bf16());
  panels.Visit([&](const auto* data) { function(CurrentTileKernels().For(data), data); });
}

}  // namespace titan::kernels::internal

#endif  // TITAN_CORE_KERNELS_DOT_H_
