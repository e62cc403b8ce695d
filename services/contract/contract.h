// SPDX-License-Identifier: Apache-2.0
//
// The numerics contract of this process as it travels: what a worker registers with, and what the
// manifest of a run carries (numerics.md section 10).
#ifndef TITAN_SERVICES_CONTRACT_CONTRACT_H_
#define TITAN_SERVICES_CONTRACT_CONTRACT_H_

#include <string>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/kernels/pool.h"
#include "core/model/parameters.h"
#include "titan/type/v1/types.pb.h"

namespace titan::services {

// Items of the kernels that this process has selected, of every numerics mode, and their digests;
// `training`: also what a gradient or an update depends on. Runs the kernels' canned vectors.
type::v1::ContractDigest ProcessContract(kernels::Pool& pool, bool training);

// Forward digest of a run (model::ForwardItems). The trainer puts it into the manifest, generators
// compare it with their own. InvalidArgument, Unimplemented: as model::ForwardItems.
StatusOr<std::string> RunForwardDigest(kernels::Pool& pool, const formats::ModelConfig& config,
                                       model::Mode mode);

}  // namespace titan::services

#endif  // TITAN_SERVICES_CONTRACT_CONTRACT_H_
