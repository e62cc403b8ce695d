// SPDX-License-Identifier: Apache-2.0
//
// Scalar twins of head.h on plain row-major matrices, with all logits in memory and one loop per
// chain: the oracle of the head's tests. The product never calls them. The caller sets the numeric
// environment.
#ifndef TITAN_CORE_KERNELS_REFERENCE_HEAD_H_
#define TITAN_CORE_KERNELS_REFERENCE_HEAD_H_

#include <cstdint>
#include <span>

#include "core/kernels/head.h"

namespace titan::kernels::reference {

// weight[vocab][H] row-major; otherwise as kernels::HeadLogProb.
void HeadLogProb(const HeadShape& shape, const float* hidden, int64_t ldh, int64_t rows,
                 const float* weight, const int32_t* targets, float* log_prob, float* max,
                 float* log_sum, float* entropy);

// weight and accumulator [vocab][H] row-major; otherwise as kernels::HeadLogProbBackward.
void HeadLogProbBackward(const HeadShape& shape, const float* hidden, int64_t ldh, int64_t rows,
                         const float* weight, const int32_t* targets, const float* dlp,
                         const float* max, const float* log_sum, std::span<const HeadUnit> units,
                         float* dhidden, int64_t ldd, float* accumulator);

}  // namespace titan::kernels::reference

#endif  // TITAN_CORE_KERNELS_REFERENCE_HEAD_H_
