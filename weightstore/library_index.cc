// SPDX-License-Identifier: Apache-2.0
#include "weightstore/library_index.h"

#include <limits>
#include <memory>
#include <utility>

#include "core/storage/key_value_store.h"
#include "titan/storage/v1/storage.pb.h"

namespace titan::weightstore {

std::string StoredVersionKey(const std::string& run_id, uint64_t version) {
  return "stored/version/" + run_id + "/" + storage::BigEndianKey(version);
}

std::string EncodeStoredModel(const StoredModel& model) {
  titan::storage::v1::StoredModelRecord record;
  record.set_id(model.id);
  for (const std::string& name : model.names) record.add_names(name);
  record.set_run_id(model.run_id);
  record.set_version(model.version);
  record.set_weights_digest(ToHex(model.weights_digest));
  record.set_bundle(model.bundle);
  record.set_bundle_bytes(model.bundle_bytes);
  record.set_manifest(EncodeManifest(*model.manifest));
  for (const Hash128& blob : model.blobs) record.add_blobs(ToHex(blob));
  record.set_stored_unix_ms(model.stored_unix_ms);
  return record.SerializeAsString();
}

StatusOr<StoredModel> DecodeStoredModel(std::string_view bytes) {
  const Status damaged = DataLoss("index: the record of a stored model is damaged");
  titan::storage::v1::StoredModelRecord record;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return damaged;
  }
  StoredModel model;
  model.id = record.id();
  model.names.assign(record.names().begin(), record.names().end());
  model.run_id = record.run_id();
  model.version = record.version();
  model.bundle = record.bundle();
  model.bundle_bytes = record.bundle_bytes();
  model.stored_unix_ms = record.stored_unix_ms();
  TITAN_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(record.manifest()));
  model.manifest = std::make_shared<const Manifest>(std::move(manifest));
  for (const std::string& hex : record.blobs()) {
    if (!FromHex(hex, &model.blobs.emplace_back())) return damaged;
  }
  if (!FromHex(record.weights_digest(), &model.weights_digest) ||
      model.blobs.size() != model.manifest->tensors.size()) {
    return damaged;
  }
  return model;
}

}  // namespace titan::weightstore
