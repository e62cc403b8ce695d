// SPDX-License-Identifier: Apache-2.0
//
// What the weight store keeps on disk: imported models, and the versions of jobs that have ended. A
// record (StoredModel) and the blobs that it names: one for each tensor, in the layout of a slot,
// and the bundle (config, tokenizer, chat template). Values, any thread.
#ifndef TITAN_WEIGHTSTORE_CLIENT_STORED_MODEL_H_
#define TITAN_WEIGHTSTORE_CLIENT_STORED_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/manifest.h"

namespace titan::weightstore {

struct StoredModel {
  std::string id;                  // StoredModelId: equal for equal weights and bundles
  std::vector<std::string> names;  // that users gave it, ascending
  std::string run_id;              // "" = imported; else a version of this run
  uint64_t version = 0;            // of the run
  Hash128 weights_digest;
  std::string bundle;  // blob, 32 hex digits; "" = the run brought none
  uint64_t bundle_bytes = 0;
  std::shared_ptr<const Manifest> manifest;
  std::vector<Hash128> blobs;  // of the manifest's tensors, in their order
  int64_t stored_unix_ms = 0;

  // Of the blobs that it names.
  uint64_t num_bytes() const;
};

// The id of weights and bundle together.
std::string StoredModelId(const Hash128& weights_digest, const std::string& bundle);

// InvalidArgument: not 1 to 64 of [A-Za-z0-9._-], or something that could be mistaken for an id
// (32 hex digits) or a job (job-...).
Status CheckModelName(const std::string& name);

// The disk of the store.
struct DiskUse {
  uint64_t used_bytes = 0;       // by blobs
  uint64_t reserved_bytes = 0;   // for the last versions of jobs that run
  uint64_t available_bytes = 0;  // for more
  bool keeps_nothing = false;    // disk_limit_bytes is 0
  std::string limits;            // what makes the last number, in words
};

// Reads what is kept. Calls block. Thread-safe.
class ModelPort {
 public:
  ModelPort() = default;
  ModelPort(const ModelPort&) = delete;
  ModelPort& operator=(const ModelPort&) = delete;
  virtual ~ModelPort() = default;

  // By id or name. NotFound.
  virtual StatusOr<StoredModel> FindModel(const std::string& id_or_name) = 0;
  // The kept version of a run. NotFound.
  virtual StatusOr<StoredModel> FindVersion(const std::string& run_id, uint64_t version) = 0;
  // A whole blob. DataLoss, naming it: the bytes are not those of its digest, or not num_bytes
  // (when given). NotFound: it is missing.
  virtual StatusOr<std::string> ReadBlob(const Hash128& digest,
                                         std::optional<uint64_t> num_bytes) = 0;
  // Leaves a bundle with the store, for the manifest of a run; its digest.
  virtual StatusOr<Hash128> PutBundle(const std::string& bundle) = 0;
};

// What ReadBlob checks.
Status CheckBlob(const Hash128& digest, std::optional<uint64_t> num_bytes, std::string_view bytes);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_STORED_MODEL_H_
