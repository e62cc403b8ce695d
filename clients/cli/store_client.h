// SPDX-License-Identifier: Apache-2.0
//
// The weight store of a cluster on this machine, as a reader: records by gRPC, weights mapped from
// its memory files.
#ifndef TITAN_CLIENTS_CLI_STORE_CLIENT_H_
#define TITAN_CLIENTS_CLI_STORE_CLIENT_H_

#include <memory>
#include <string>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "services/weightstore_client/grpc_leader.h"
#include "titan/weightstore/v1/weightstore.pb.h"
#include "weightstore/client/held_version.h"

namespace titan::cli {

// One thread; calls block.
class StoreClient {
 public:
  // Unavailable: no cluster runs in the data folder.
  static StatusOr<std::unique_ptr<StoreClient>> Open(const std::string& data_folder);
  ~StoreClient();

  // NotFound: no such run.
  StatusOr<weightstore::v1::ListVersionsResponse> ListVersions(const std::string& run_id);
  StatusOr<weightstore::v1::ListStoredModelsResponse> ListStoredModels();
  // The bytes that became free. NotFound.
  StatusOr<uint64_t> Delete(const weightstore::v1::DeleteStoredModelRequest& request);
  // Deletes kept versions and unnamed blobs, or says what it would delete.
  StatusOr<weightstore::v1::CollectGarbageResponse> CollectGarbage(
      const weightstore::v1::CollectGarbageRequest& request);
  // At most max_bytes of a blob from `offset` on, fewer when they are many; empty at its end. The
  // bytes are not compared with the digest. NotFound.
  StatusOr<std::string> ReadBlobPart(const Hash128& digest, uint64_t offset, uint64_t max_bytes);
  // What is kept on disk; lives as long as this object.
  weightstore::GrpcLeader& models();
  // Maps a committed version; it stays as long as the result lives.
  StatusOr<weightstore::HeldVersion> Map(const std::string& run_id, uint64_t version);

 private:
  struct Impl;
  explicit StoreClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_STORE_CLIENT_H_
