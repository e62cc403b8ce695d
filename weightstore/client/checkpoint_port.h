// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of runs that go on, as a trainer sees them: state that is written to the weight
// store's disk by content, and found again by a trainer that takes the run over.
#ifndef TITAN_WEIGHTSTORE_CLIENT_CHECKPOINT_PORT_H_
#define TITAN_WEIGHTSTORE_CLIENT_CHECKPOINT_PORT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/manifest.h"
#include "weightstore/client/stored_model.h"

namespace titan::weightstore {

struct Checkpoint {
  std::string request_id;
  std::string run_id;
  uint64_t epoch = 0;    // the trainer's
  uint64_t version = 0;  // whose weights it has
  Manifest manifest;     // of weights and moments
  std::string facts;     // what the trainer needs besides; stored where models have their bundle
  Hash128 digest;        // of the tensors (weights_digest.h)
  uint64_t needed_version = 0;  // checkpoints older than the newest at or below it may go
};

// Thread-safe. Calls block.
class CheckpointPort {
 public:
  CheckpointPort() = default;
  CheckpointPort(const CheckpointPort&) = delete;
  CheckpointPort& operator=(const CheckpointPort&) = delete;
  virtual ~CheckpointPort() = default;

  // `next` gives the bytes of the tensors in the manifest's order, in parts of 1 byte to 1 MiB,
  // nothing at the end; it is called by another thread, perhaps still when this call has returned.
  // `given_up` is asked every few milliseconds on the calling thread: once it is true the call is
  // broken off (Cancelled) whether the store answers or not. Returns when the checkpoint is
  // durable, OK also for one that was there. ResourceExhausted, with the numbers: the disk;
  // Aborted: the epoch is superseded; FailedPrecondition: the run has another state at that version
  // or has ended, or nothing is kept on disk; DataLoss: other bytes arrived; the failure of `next`.
  virtual Status PutCheckpoint(const Checkpoint& checkpoint,
                               std::function<StatusOr<std::string>()> next,
                               const std::function<bool()>& given_up) = 0;
  // The newest one of the run. NotFound.
  virtual StatusOr<StoredModel> FindCheckpoint(const std::string& run_id) = 0;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_CHECKPOINT_PORT_H_
