// SPDX-License-Identifier: Apache-2.0
//
// The writer's side, one per trainer rank and life of its process:
//
//   auto publisher = Publisher::Register(leader, {...});
//   each step:  auto begun = publisher->Begin(version, wait);
//               begun->recorded ? (compute weights elsewhere; ConfirmRecorded)
//                               : (write begun->bytes; Finish; Commit)
#ifndef TITAN_WEIGHTSTORE_CLIENT_PUBLISHER_H_
#define TITAN_WEIGHTSTORE_CLIENT_PUBLISHER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/leader_port.h"
#include "weightstore/client/slot_mapping.h"
#include "weightstore/client/unix_socket.h"

namespace titan::weightstore {

struct PublisherOptions {
  std::string socket_path;  // of the host daemon
  std::string run_id;
  std::string request_id;  // unique for this life of the process; a retry of Register repeats it
  Manifest manifest;
  uint32_t max_age = 0;  // S of the schedule; the ring has S + 3 slots
  uint32_t evaluation_slots = 1;
  int hash_threads = 1;  // at least 1
};

// Not thread-safe. Slots stay mapped between versions and are writable only from Begin to Finish.
class Publisher {
 public:
  struct Begun {
    bool recorded = false;       // the version has a record: bytes is empty
    Hash128 recorded_digest;     // only then
    std::span<std::byte> bytes;  // manifest.slot_bytes, with the bytes of an older version or zeros
  };

  // Takes the run over: whoever published before is fenced. leader must outlive the publisher.
  // Codes of LeaderPort::RegisterTrainer, and InvalidArgument of Validate(manifest).
  static StatusOr<std::unique_ptr<Publisher>> Register(LeaderPort& leader,
                                                       PublisherOptions options);

  // Codes of LeaderPort::BeginVersion and of the socket (Aborted: fenced meanwhile). An open
  // version must be finished and committed, or begun again, first.
  StatusOr<Begun> Begin(uint64_t version, std::chrono::milliseconds wait);

  // The bytes of the open version are written: makes the map read-only, hashes it and has the host
  // daemon verify it. Returns the weights digest. DataLoss: the daemon read other bytes; the
  // version is aborted, Begin it again. FailedPrecondition: no version is open.
  StatusOr<Hash128> Finish();

  // The commit point of the finished version; call again after Unavailable. FailedPrecondition:
  // divergence from the recorded digest, or nothing is finished. Returns unix milliseconds.
  StatusOr<int64_t> Commit(const std::string& plan_digest, uint64_t train_step);

  // For a recorded version: hashes `weights` (laid out as a slot) and compares with the record.
  // FailedPrecondition: divergence, naming both digests. Returns the digest.
  StatusOr<Hash128> ConfirmRecorded(uint64_t version, std::span<const std::byte> weights) const;

  uint64_t epoch() const { return registration_.epoch; }
  uint32_t ring_slots() const { return registration_.ring_slots; }
  const Manifest& manifest() const { return options_.manifest; }

 private:
  struct OpenVersion {
    uint64_t version = 0;
    uint64_t grant = 0;
    uint64_t slot_id = 0;
    std::optional<Hash128> digest;  // set by Finish
  };

  Publisher(LeaderPort& leader, PublisherOptions options, Registration registration);
  StatusOr<uint64_t> MapForWriting(uint64_t grant);
  Status Protect(uint64_t slot_id, bool writable);

  LeaderPort& leader_;
  const PublisherOptions options_;
  const Registration registration_;
  UniqueFd connection_;  // its end tells the daemon that this writer is gone
  std::map<uint64_t, MappedMemory> slots_;
  std::optional<OpenVersion> open_;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_PUBLISHER_H_
