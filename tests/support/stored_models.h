// SPDX-License-Identifier: Apache-2.0
//
// What a weight store is sent to keep on disk: small models and checkpoints, whose tensors hold one
// number. Test code.
#ifndef TITAN_TESTS_SUPPORT_STORED_MODELS_H_
#define TITAN_TESTS_SUPPORT_STORED_MODELS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "services/weightstore_client/convert.h"
#include "services/weightstore_client/grpc_leader.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore::testing {

// A model as `titanctl weights import` sends it: bundle and tensors of SmallManifest.
struct SmallImport {
  explicit SmallImport(uint64_t number, int64_t panels = 2) {
    const Manifest manifest = SmallManifest(panels);
    std::vector<std::byte> slot(manifest.slot_bytes);
    Fill(slot, number);
    header.set_request_id("import");
    *header.mutable_manifest() = ToProto(manifest);
    header.set_bundle_bytes(bundle.size());
    header.set_weights_digest(ToHex(WeightsDigest(manifest, slot, 1)));
    bytes = bundle;
    for (const TensorEntry& tensor : manifest.tensors) {
      bytes.append(reinterpret_cast<const char*>(slot.data()) + tensor.offset, tensor.num_bytes);
    }
  }
  // The next part of the stream.
  StatusOr<std::string> Next() {
    const std::string part = bytes.substr(at, 100'000);
    at += part.size();
    return part;
  }
  const std::string bundle = "the bundle";
  v1::ImportModelHeader header;
  std::string bytes;
  size_t at = 0;
};

inline constexpr char kFacts[] = "the facts";

// A checkpoint of run `run` at a version; `meanwhile` runs before each part is given. Its tensors
// hold the version's number, or another one, as those of a run in bf16 hold other bytes.
inline Status PutSmallCheckpoint(GrpcLeader& leader, uint64_t epoch, uint64_t version,
                                 const std::function<void(int part)>& meanwhile = {},
                                 uint64_t needed = 0, int64_t number = -1) {
  Checkpoint checkpoint;
  checkpoint.request_id = "c";
  checkpoint.run_id = "run";
  checkpoint.epoch = epoch;
  checkpoint.version = version;
  checkpoint.manifest = SmallManifest();
  checkpoint.facts = kFacts;
  checkpoint.needed_version = needed;
  std::vector<std::byte> slot(checkpoint.manifest.slot_bytes);
  Fill(slot, number < 0 ? version : static_cast<uint64_t>(number));
  checkpoint.digest = WeightsDigest(checkpoint.manifest, slot, 1);
  size_t next = 0;
  return leader.PutCheckpoint(
      checkpoint,
      [&]() -> StatusOr<std::string> {
        if (meanwhile) meanwhile(static_cast<int>(next));
        if (next == checkpoint.manifest.tensors.size()) return std::string();
        const TensorEntry& tensor = checkpoint.manifest.tensors[next++];
        return std::string(reinterpret_cast<const char*>(slot.data()) + tensor.offset,
                           tensor.num_bytes);
      },
      [] { return false; });
}

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_STORED_MODELS_H_
