// SPDX-License-Identifier: Apache-2.0
//
// Models out of the weight store: what stands in a job's model.id, and versions that were kept,
// read without the files they came from.
#ifndef TITAN_SERVICES_MODELS_STORED_SOURCE_H_
#define TITAN_SERVICES_MODELS_STORED_SOURCE_H_

#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/formats/model_bundle.h"
#include "core/model/parameters.h"
#include "core/text/import_model.h"
#include "weightstore/client/stored_model.h"

namespace titan::services {

// The bundle blob of a record. FailedPrecondition: it has none; codes of ModelPort::ReadBlob, the
// model and "bundle" first.
StatusOr<formats::ModelBundle> ReadBundle(weightstore::ModelPort& port,
                                          const weightstore::StoredModel& model);

// Of a run's manifest, by its digest; `where` stands first in messages.
StatusOr<formats::ModelBundle> ReadBundle(weightstore::ModelPort& port, const std::string& digest,
                                          std::optional<uint64_t> num_bytes,
                                          const std::string& where);

// The tensors as a ModelSource: each is read when it is asked for, compared with its digest and
// unpacked, so that one tensor is in memory at a time. `port` must outlive the result; any thread.
// FailedPrecondition: the record's layout is not one of this program. Errors of reading name the
// model and the tensor.
StatusOr<text::ImportedModel> OpenStoredModel(weightstore::ModelPort& port,
                                              const weightstore::StoredModel& model);

// "model <first name, or id>" or "version 3 of run r", for messages.
std::string Describe(const weightstore::StoredModel& model);

}  // namespace titan::services

#endif  // TITAN_SERVICES_MODELS_STORED_SOURCE_H_
