// SPDX-License-Identifier: Apache-2.0
//
// A digest of an update's gradient, the same for every layout of ranks: what tells two runs whose
// weights differ whether their gradients already did. Pure function, any thread.
#ifndef TITAN_TRAINER_GRADIENT_DIGEST_H_
#define TITAN_TRAINER_GRADIENT_DIGEST_H_

#include "core/base/hash.h"
#include "core/kernels/pool.h"
#include "core/model/parameters.h"

namespace titan::trainer {

// Of what the table's rank owns of a gradient (of the layout of kF32): the sum modulo 2^128 of the
// xxh3-128 of its panels, seeded with parameter and place in the whole matrix; a vector is one
// panel. What every rank of a tensor group holds counts on the first. So the digests of a group's
// ranks add up to that of the whole gradient. One pass over memory.
Hash128 GradientDigest(kernels::Pool& pool, const model::ParameterTable& table,
                       const float* gradient);

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_GRADIENT_DIGEST_H_
