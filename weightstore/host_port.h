// SPDX-License-Identifier: Apache-2.0
//
// A host daemon as the leader drives it: commands, carried out in the order in which they were
// sent, and calls that answer. The leader owns the interface; Host implements it in the same
// process, services by a stream to another one.
#ifndef TITAN_WEIGHTSTORE_HOST_PORT_H_
#define TITAN_WEIGHTSTORE_HOST_PORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/manifest.h"
#include "weightstore/client/slot_header.h"

namespace titan::weightstore {

// Takes memory for a slot, ahead of need: HostEvents::SlotMade or SlotNotMade follows.
struct MakeSlot {
  uint64_t slot_id = 0;
  uint64_t num_bytes = 0;
  std::string run_id;
  uint64_t epoch = 0;  // of the writer; 0: the host itself fills it (evaluation)
  uint32_t order = 0;  // SlotRequest::order
};
// Gives its memory back, or stops making it.
struct DropSlot {
  uint64_t slot_id = 0;
};
// What the slot holds from here on. Another grant number takes it from everybody who has a lease on
// it or writes it, before its bytes may change.
struct WriteHeader {
  SlotHeaderFields fields;
  bool open_for_writing = false;  // its writer may map it, with this grant number
};
// Who presents these may read the slot, as long as its grant number stays.
struct AllowLease {
  uint64_t lease_id = 0;
  uint64_t slot_id = 0;
  uint64_t grant = 0;
  uint64_t epoch = 0;  // of the slot's writer
  Hash128 token;       // not guessable
  std::string holder;  // for HostReport alone, as what follows
  int64_t ttl_ms = 0;  // while it is not mapped
};
struct EndLease {
  uint64_t lease_id = 0;
};
// Somebody waits for slots that are made ahead of need.
struct HurrySlots {};
// Takes the memory of an offer for a slot instead of new one, once all of it has that weights
// digest: HostEvents::SlotMade or SlotNotMade follows. The slot's epoch is kNoTrainer.
struct AdoptSlot {
  uint64_t offer_id = 0;
  uint64_t slot_id = 0;
  std::string run_id;
  Hash128 digest;
  std::shared_ptr<const Manifest> manifest;
};
struct RefuseOffer {
  uint64_t offer_id = 0;
  Status why;
};

using HostCommand = std::variant<MakeSlot, DropSlot, WriteHeader, AllowLease, EndLease, HurrySlots,
                                 AdoptSlot, RefuseOffer>;

// The epoch of slots that were adopted: no trainer ever has it, so that none writes to them.
inline constexpr uint64_t kNoTrainer = ~uint64_t{0};

// Memory that a reader on the host maps since a daemon that is gone gave it out, as the reader
// describes it; the host has looked at its size and seals.
struct SlotOffer {
  uint64_t offer_id = 0;  // of the host's incarnation
  std::string run_id;
  uint64_t version = 0;
  uint64_t num_bytes = 0;
  Hash128 digest;
  Hash128 manifest_id;
};

// All that a host has, for a leader that does not know it (any more).
struct SlotReport {
  std::string run_id;
  uint64_t epoch = 0;
  uint64_t num_bytes = 0;
  bool made = false;        // else being made, or adopted
  SlotHeaderFields header;  // as clients see it
  bool open_for_writing = false;
};
struct LeaseReport {
  AllowLease lease;
  bool mapped = false;
};
struct WriterReport {
  std::string run_id;
  uint64_t epoch = 0;
};
struct HostReport {
  std::vector<SlotReport> slots;
  std::vector<LeaseReport> leases;
  std::vector<WriterReport> gone_writers;  // their connections closed
  std::vector<SlotOffer> offers;           // that are not decided
};

// The bytes of a slot, readable while `owner` lives; they may become those of another version.
struct SlotView {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// Shows a part of one slot.
using ViewPart = std::function<StatusOr<SlotView>(uint64_t offset, uint64_t num_bytes)>;

// Brings a tensor of a manifest, by its index there, into memory of its num_bytes.
using ReadTensor = std::function<Status(size_t tensor, std::span<std::byte> out)>;

// Thread-safe.
class HostPort {
 public:
  HostPort() = default;
  HostPort(const HostPort&) = delete;
  HostPort& operator=(const HostPort&) = delete;
  virtual ~HostPort() = default;

  // Called with the leader's lock held: must neither wait for long nor call HostEvents.
  virtual void Send(std::vector<HostCommand> commands) = 0;
  // How many of the commands that were sent have been carried out. HostEvents::CommandsDone says
  // that it has grown, except for those that Send itself carried out.
  virtual uint64_t num_done() const = 0;

  // The calls below block, come after all commands that were sent before them, and end with
  // Unavailable when the host is gone. Aborted: the slot is not there any more or has another grant
  // number.

  // The weights digest of what the slot's writer left. FailedPrecondition: it was never mapped for
  // writing.
  virtual StatusOr<Hash128> HashWritten(uint64_t slot_id, uint64_t grant,
                                        std::shared_ptr<const Manifest> manifest) = 0;
  // Copies a slot into another one, which has that grant number and which the host itself fills;
  // the weights digest of the copy.
  virtual StatusOr<Hash128> CopySlot(uint64_t from_slot, uint64_t to_slot, uint64_t to_grant,
                                     std::shared_ptr<const Manifest> manifest) = 0;
  // Fills a slot, which has that grant number and which the host itself fills, tensor by tensor;
  // the weights digest of what it then holds. Codes of `read`.
  virtual StatusOr<Hash128> FillSlot(uint64_t to_slot, uint64_t to_grant,
                                     std::shared_ptr<const Manifest> manifest,
                                     const ReadTensor& read) = 0;
  // A part of a slot. InvalidArgument: it ends outside.
  virtual StatusOr<SlotView> ViewSlot(uint64_t slot_id, uint64_t offset, uint64_t num_bytes) = 0;
};

// For who keeps the port alive itself.
inline std::shared_ptr<HostPort> Unowned(HostPort& port) {
  return std::shared_ptr<HostPort>(std::shared_ptr<void>(), &port);
}

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_HOST_PORT_H_
