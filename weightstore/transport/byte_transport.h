// SPDX-License-Identifier: Apache-2.0
//
// How the bytes of a committed version come from a host daemon's slot to whoever pulls it: one
// interface, one implementation for each lane. Whoever pulls names ranges; what it gets is whole
// and of the version that the lease is for, or an error.
//
//   transport->Open(grant) -> RemoteSlot -> Read(pieces, deadline) ... -> Confirm()
//
// A transport never retries at another source and never decides what to do about a dead one; that
// is the caller's, which knows where else the version is.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_BYTE_TRANSPORT_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_BYTE_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/remote_lease.h"
#include "weightstore/client/slot_mapping.h"

namespace titan::weightstore::lanes {

// Reasons (weightstore/client/reason.h) of Aborted, besides kEpochSuperseded.
// The slot no longer holds the version of the handle: take a new lease.
inline constexpr std::string_view kStaleHandle = "STALE_HANDLE";
// The lease ended, on the source's clock or on this process's.
inline constexpr std::string_view kLeaseExpired = "LEASE_EXPIRED";

// What a leader gives with a lease, and what every request of a remote lane carries.
struct ReadHandle {
  uint64_t lease_id = 0;
  uint64_t epoch = 0;  // fencing token of the writer whose slot it is
  uint64_t grant = 0;  // of the slot
  Hash128 token;       // made by the leader for this lease, not guessable

  friend bool operator==(const ReadHandle&, const ReadHandle&) = default;
};

struct PullGrant {
  Lease lease;
  uint64_t epoch = 0;
  Hash128 token;
  // On this process's monotonic clock; reads that end later are refused.
  SteadyTime expires = SteadyTime::max();

  ReadHandle handle() const { return {lease.lease_id, epoch, lease.grant, token}; }
};

// A step of a nest of loops at the source, in bytes.
struct PackLoop {
  uint64_t count = 1;
  uint64_t stride = 0;

  friend bool operator==(const PackLoop&, const PackLoop&) = default;
};

inline constexpr size_t kMaxPackLoops = 3;
// Of a packed piece, and of what a source sends as one answer.
inline constexpr uint64_t kMaxPackedBytes = 4 << 20;

// A range of the slot, or (with loops, outermost first) runs of run_bytes that the source packs.
// destination.size() is what is read.
struct Piece {
  uint64_t source_offset = 0;
  std::span<std::byte> destination;
  uint64_t run_bytes = 0;  // with loops alone
  std::vector<PackLoop> loops;
};

// One version at one source. Not thread-safe: one call at a time. Destinations must stay valid
// until Read returns; after that the transport does not touch them.
class RemoteSlot {
 public:
  RemoteSlot() = default;
  RemoteSlot(const RemoteSlot&) = delete;
  RemoteSlot& operator=(const RemoteSlot&) = delete;
  virtual ~RemoteSlot() = default;

  virtual uint64_t slot_bytes() const = 0;
  // The slot itself where the lane maps it (read-only, valid while this object lives and Confirm
  // answers OK); empty elsewhere.
  virtual std::span<const std::byte> mapped() const { return {}; }
  // Can it gather at the source? Pieces with loops are InvalidArgument otherwise.
  virtual bool can_pack() const = 0;

  // Fills all destinations and confirms. On failure their content is undefined and not to be used.
  //   InvalidArgument    a piece outside of the slot or of a wrong form; nothing was read
  //   Aborted            kStaleHandle, kLeaseExpired, kEpochSuperseded: take a new lease
  //   DataLoss           kDigestMismatch: bytes did not arrive as they were sent, again when asked
  //   for
  //                      again
  //   Unavailable        the source is gone, or sent nothing for the stall timeout: take another
  //   DeadlineExceeded   not all arrived in time
  virtual Status Read(std::span<const Piece> pieces, SteadyTime deadline) = 0;

  // Does the source still hold this version for this lease? Codes of Read. Call after the last use
  // of bytes and before anything made from them leaves the process.
  virtual Status Confirm(SteadyTime deadline) = 0;

  // Answers whose bytes were not those that the source hashed, since Open; each was asked for
  // again. Not 0: raise the alarm.
  virtual uint64_t corrupt_answers() const { return 0; }
};

// Thread-safe.
class ByteTransport {
 public:
  ByteTransport() = default;
  ByteTransport(const ByteTransport&) = delete;
  ByteTransport& operator=(const ByteTransport&) = delete;
  virtual ~ByteTransport() = default;

  virtual Lane lane() const = 0;
  // Codes of Read, and DataLoss: the source holds another version or digest than the lease says.
  virtual StatusOr<std::unique_ptr<RemoteSlot>> Open(const PullGrant& grant,
                                                     SteadyTime deadline) = 0;
};

// InvalidArgument, naming the piece: a range or its loops end outside of the slot, sizes that do
// not match, more loops than kMaxPackLoops or packed bytes than kMaxPackedBytes.
Status CheckPiece(const Piece& piece, uint64_t slot_bytes);

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_BYTE_TRANSPORT_H_
