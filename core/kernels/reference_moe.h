// SPDX-License-Identifier: Apache-2.0
//
// Scalar twins of moe_router.h and moe_experts.h, written straight from their orders, row by row
// and without plans or places: what the tests compare with. Weights are row-major [n][k].
#ifndef TITAN_CORE_KERNELS_REFERENCE_MOE_H_
#define TITAN_CORE_KERNELS_REFERENCE_MOE_H_

#include <cstdint>
#include <vector>

#include "core/kernels/moe_experts.h"
#include "core/kernels/moe_router.h"

namespace titan::kernels::reference {

void ChooseExperts(const RouterShape& shape, const float* logits, const float* correction_bias,
                   int64_t rows, int32_t* ids, float* weights);
void ChooseExpertsBackward(const RouterShape& shape, const float* logits, const int32_t* ids,
                           const float* dweights, int64_t rows, float* dlogits);

// One linear per expert on the rows that chose it: out [rows][chosen][n] of x [rows][k]
// (per_choice false) or of x [rows][chosen][k].
void ExpertLinear(const int32_t* ids, int64_t rows, int64_t chosen, bool per_choice, const float* x,
                  const std::vector<std::vector<float>>& weights,
                  const std::vector<std::vector<float>>& bias, int64_t n, int64_t k, int leaves,
                  float* out);

// out, dout [rows][chosen][width].
void CombinePlaces(int64_t rows, int64_t chosen, const float* weights, const float* out,
                   const float* shared, int64_t width, float* y);
void CombinePlacesBackward(int64_t rows, int64_t chosen, const float* weights, const float* out,
                           const float* dy, int64_t width, float* dout, float* dweights);
void ScatterPlaces(int64_t rows, int64_t chosen, const float* dplaces, int64_t width, float* dx);

void BoundedGate(const GateBounds& bounds, int64_t n, const float* gate, const float* up,
                 float* out);
void BoundedGateBackward(const GateBounds& bounds, int64_t n, const float* gate, const float* up,
                         const float* dout, float* dgate, float* dup);

}  // namespace titan::kernels::reference

#endif  // TITAN_CORE_KERNELS_REFERENCE_MOE_H_
