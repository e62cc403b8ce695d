// SPDX-License-Identifier: Apache-2.0
//
// The numerics contract of this process as it travels: what a worker registers with, and what the
// manifest of a run carries (numerics.md section 10).
#ifndef TITAN_SERVICES_CONTRACT_CONTRACT_H_
#define TITAN_SERVICES_CONTRACT_CONTRACT_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/kernels/digest.h"
#include "core/kernels/pool.h"
#include "core/model/parameters.h"
#include "titan/type/v1/types.pb.h"
#include "weightstore/client/manifest.h"

namespace titan::services {

// Items of the kernels that this process has selected, of every numerics mode, and their digests;
// `training`: also what a gradient or an update depends on. Runs the kernels' canned vectors.
type::v1::ContractDigest ProcessContract(kernels::Pool& pool, bool training);

// For a run's manifest, where a trainer leaves them and generators compare them with their own. Of
// a long value (what each layer of a model is) its beginning and its hash. Values are ASCII.
std::vector<weightstore::ContractItem> ToManifest(const std::vector<kernels::ContractItem>& items);

// Forward digest of a run (model::ForwardItems). InvalidArgument, Unimplemented: as
// model::ForwardItems.
StatusOr<std::string> RunForwardDigest(kernels::Pool& pool, const formats::ModelConfig& config,
                                       model::Mode mode);

// FailedPrecondition, naming the first item that differs: this process computes another forward
// contract than the manifest's weights were made under. Else as model::ForwardItems.
Status CheckRunContract(kernels::Pool& pool, const formats::ModelConfig& config, model::Mode mode,
                        const weightstore::Manifest& manifest);

}  // namespace titan::services

#endif  // TITAN_SERVICES_CONTRACT_CONTRACT_H_
