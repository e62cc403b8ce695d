// SPDX-License-Identifier: Apache-2.0
//
// What a checkpoint of a run is: its tensors (weights, first and second moments, each parameter in
// the layout of the master), in a manifest of their own that carries the run's contract, and the
// facts beside them. Pure functions, any thread, except CheckpointBytes.
#ifndef TITAN_SERVICES_TRAINER_CHECKPOINT_H_
#define TITAN_SERVICES_TRAINER_CHECKPOINT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/kernels/optimizer.h"
#include "core/model/parameters.h"
#include "weightstore/client/manifest.h"
#include "weightstore/client/stored_model.h"

namespace titan::services {

// Weights, first and second moments: three arrays of the master table's slot_bytes.
inline constexpr size_t kCheckpointArrays = 3;
using CheckpointArrays = std::array<const std::byte*, kCheckpointArrays>;

// Tensors "NAME", "first_moment/NAME" and "second_moment/NAME"; config, mode and contract are those
// of the run's manifest. An entry's offset is that in the three arrays laid end to end.
weightstore::Manifest CheckpointManifest(const weightstore::Manifest& run,
                                         const model::ParameterTable& master);

// FailedPrecondition, naming the field, tensor or contract item: a checkpoint with manifest `there`
// is not one that a run with manifest `here` may go on from.
Status CheckSameRun(const weightstore::Manifest& there, const weightstore::Manifest& here);

struct CheckpointFacts {
  Hash128 weights_digest;  // of the version
  kernels::AdamWPowers powers;
};
std::string EncodeFacts(const CheckpointFacts& facts);
// DataLoss: not what EncodeFacts made.
StatusOr<CheckpointFacts> DecodeFacts(std::string_view bytes);

// The digest of the tensors.
Hash128 CheckpointDigest(const weightstore::Manifest& manifest, const CheckpointArrays& arrays);

// The tensors' bytes in the manifest's order, a part of at most 1 MiB at a time. manifest and
// arrays must outlive it.
class CheckpointBytes {
 public:
  CheckpointBytes(const weightstore::Manifest& manifest, const CheckpointArrays& arrays)
      : manifest_(manifest), arrays_(arrays) {}
  // Empty: the end.
  std::string Next();

 private:
  const weightstore::Manifest& manifest_;
  const CheckpointArrays arrays_;
  size_t tensor_ = 0;
  uint64_t done_ = 0;  // bytes of it
};

// Fills the arrays from the blobs of a stored checkpoint, whose manifest CheckSameRun accepted;
// what no tensor covers is left alone. Returns the facts. Codes of ModelPort::ReadBlob.
StatusOr<CheckpointFacts> ReadCheckpoint(weightstore::ModelPort& models,
                                         const weightstore::StoredModel& stored,
                                         const std::array<std::byte*, kCheckpointArrays>& arrays);

}  // namespace titan::services

#endif  // TITAN_SERVICES_TRAINER_CHECKPOINT_H_
