// SPDX-License-Identifier: Apache-2.0
//
// The manifest of a model's parameters: what a trainer registers and what an import stores. Pure
// function, any thread.
#ifndef TITAN_SERVICES_MODELS_MANIFEST_OF_H_
#define TITAN_SERVICES_MODELS_MANIFEST_OF_H_

#include "core/formats/model_config.h"
#include "core/model/parameters.h"
#include "weightstore/client/manifest.h"

namespace titan::services {

// Tensors, sizes, configuration and mode; contract digests and bundle are left empty.
weightstore::Manifest ManifestOf(const model::ParameterTable& table,
                                 const formats::ModelConfig& config);

// The entry of one parameter.
weightstore::TensorEntry EntryOf(const model::Parameter& parameter);

}  // namespace titan::services

#endif  // TITAN_SERVICES_MODELS_MANIFEST_OF_H_
