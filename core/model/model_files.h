// SPDX-License-Identifier: Apache-2.0
//
// Weights between files and slots. Loading streams tensor by tensor, so beside the slot at most one
// tensor is in memory; exporting streams blocks of rows. Any thread; the slot is the caller's.
#ifndef TITAN_CORE_MODEL_MODEL_FILES_H_
#define TITAN_CORE_MODEL_MODEL_FILES_H_

#include <functional>
#include <string>

#include "core/base/status.h"
#include "core/formats/model_bundle.h"
#include "core/formats/model_source.h"
#include "core/kernels/pool.h"
#include "core/model/parameters.h"

namespace titan::model {

// Fills every parameter of the slot from the source and writes pad lanes and gaps, so equal weights
// give equal slot bytes. What is bfloat16 in the slot is rounded once, from the f32 value of what
// is stored (exact for f32, f16, bf16). A head stored beside tied embeddings is left to the source.
// REQUIRES: table is of source.config(). InvalidArgument, NotFound: a tensor is missing, holds what
// the source refuses, or a value that is not finite in bfloat16.
Status LoadWeights(kernels::Pool& pool, const formats::ModelSource& source,
                   const ParameterTable& table, void* slot);

// Writes a folder that transformers loads: the bundle's files and model.safetensors (F32, names and
// shapes of the table; a bfloat16 is widened exactly) out of the slot, which may be a version
// mapped from the weight store. Beside the slot a few MiB are in memory. The folder appears
// whole or not at all: errors of formats::HfFolderWriter. `go_on` (may be empty) is asked between
// blocks; its failure ends the export, leaves nothing and is returned. REQUIRES: table is of
// bundle.config.
Status ExportHfFolder(kernels::Pool& pool, const ParameterTable& table, const void* slot,
                      const formats::ModelBundle& bundle, const std::string& folder,
                      const std::function<Status()>& go_on = {});
// The same out of a source, a tensor in memory at a time. REQUIRES: source has bundle.config.
Status ExportHfFolder(const formats::ModelSource& source, const formats::ModelBundle& bundle,
                      const std::string& folder, const std::function<Status()>& go_on = {});

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_MODEL_FILES_H_
