// SPDX-License-Identifier: Apache-2.0
//
// The model's part of the contract digests (numerics.md section 10), beside that of the kernels
// (core/kernels/digest.h). Thread-safety: as the kernels.
#ifndef TITAN_CORE_MODEL_CONTRACT_H_
#define TITAN_CORE_MODEL_CONTRACT_H_

#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/kernels/digest.h"
#include "core/kernels/pool.h"
#include "core/model/parameters.h"

namespace titan::model {

// What a log-prob of this model depends on: the items of its mode's kernels, as this process has
// selected them, and the model's own: its config (shapes, eps, rope), the leaves of every matrix,
// mode and cache type. Runs canned vectors. InvalidArgument, Unimplemented: as ParameterTable::Of.
StatusOr<std::vector<kernels::ContractItem>> ForwardItems(kernels::Pool& pool,
                                                          const formats::ModelConfig& config,
                                                          Mode mode);

// What a gradient or an update depends on besides, of the mode's kernels.
std::vector<kernels::ContractItem> TrainingItems(kernels::Pool& pool, Mode mode);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_CONTRACT_H_
