// SPDX-License-Identifier: Apache-2.0
//
// Weights between files and slots. Loading streams tensor by tensor, so beside the slot at most one
// tensor is in memory; exporting likewise. Any thread; the slot is the caller's.
#ifndef TITAN_CORE_MODEL_MODEL_FILES_H_
#define TITAN_CORE_MODEL_MODEL_FILES_H_

#include <string>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/formats/model_source.h"
#include "core/kernels/pool.h"
#include "core/model/parameters.h"

namespace titan::model {

// Fills every parameter of the slot from the source and zeroes pad lanes and gaps, so equal weights
// give equal slot bytes. A head stored beside tied embeddings is left to the source. REQUIRES:
// table is of source.config(). InvalidArgument, NotFound: a tensor is missing or holds what the
// source refuses.
Status LoadWeights(kernels::Pool& pool, const formats::ModelSource& source,
                   const ParameterTable& table, float* slot);

// Writes <folder>/model.safetensors (F32, names and shapes of the table) and <folder>/config.json,
// which transformers loads. The folder is made if needed; each file is written under another name,
// synced, then renamed. ResourceExhausted, Internal: names the path and the system's reason.
Status ExportSafetensors(kernels::Pool& pool, const ParameterTable& table,
                         const formats::ModelConfig& config, const float* slot,
                         const std::string& folder);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_MODEL_FILES_H_
