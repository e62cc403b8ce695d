// SPDX-License-Identifier: Apache-2.0
//
// Records of what is kept on disk, as bytes of the index. Pure functions, any thread.
#ifndef TITAN_WEIGHTSTORE_LIBRARY_INDEX_H_
#define TITAN_WEIGHTSTORE_LIBRARY_INDEX_H_

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "weightstore/client/stored_model.h"

namespace titan::weightstore {

// Where records of checkpoints are: checkpoint/<run id>/<big-endian version>.
inline constexpr std::string_view kCheckpointPrefix = "checkpoint/";
// Of a version: stored/version/<run id>/<big-endian number>.
std::string StoredVersionKey(const std::string& run_id, uint64_t version);

std::string EncodeStoredModel(const StoredModel& model);
// DataLoss: not what EncodeStoredModel made.
StatusOr<StoredModel> DecodeStoredModel(std::string_view bytes);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_LIBRARY_INDEX_H_
