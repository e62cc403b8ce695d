// SPDX-License-Identifier: Apache-2.0
//
// Scalar twin of gated_delta.h: whole sequences of one batch, one value at a time from the formulas
// of that header, without states, transposes or threads. What the tests compare with.
#ifndef TITAN_CORE_KERNELS_REFERENCE_GATED_DELTA_H_
#define TITAN_CORE_KERNELS_REFERENCE_GATED_DELTA_H_

#include <cstdint>

#include "core/kernels/gated_delta.h"

namespace titan::kernels::reference {

// One sequence of `rows` tokens from position 0. saved (may be null) as DeltaForward fills it.
void DeltaForward(const DeltaShape& shape, int64_t rows, const float* q, const float* k,
                  const float* v, const float* g, const float* beta, float* out,
                  const DeltaSaved* saved);
void DeltaBackward(const DeltaShape& shape, int64_t rows, const float* q, const float* k,
                   const float* g, const float* beta, const DeltaSaved& saved, const float* dout,
                   const DeltaGradients& gradients);

}  // namespace titan::kernels::reference

#endif  // TITAN_CORE_KERNELS_REFERENCE_GATED_DELTA_H_
