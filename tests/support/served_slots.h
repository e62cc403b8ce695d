// SPDX-License-Identifier: Apache-2.0
//
// Slots behind a server of a remote lane, without a store: leases are numbers that a test ends or
// makes stale, slots are real memory files. Test code.
#ifndef TITAN_TESTS_SUPPORT_SERVED_SLOTS_H_
#define TITAN_TESTS_SUPPORT_SERVED_SLOTS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/flipping_proxy.h"
#include "weightstore/client/reason.h"
#include "weightstore/slot_memory.h"
#include "weightstore/transport/slot_reads.h"

namespace titan::weightstore::lanes::testing {

// Byte number i of a slot of this version.
inline std::byte ByteOf(uint64_t version, uint64_t i) {
  return static_cast<std::byte>((i * 2654435761u + version * 97) >> 11);
}

// Another version's bytes in a slot that is being read: what another process does, which is why
// ThreadSanitizer is not to look.
__attribute__((no_sanitize_thread)) inline void Overwrite(std::span<std::byte> slot) {
  auto* bytes = reinterpret_cast<volatile unsigned char*>(slot.data());
  for (size_t i = 0; i < slot.size(); ++i) bytes[i] = static_cast<unsigned char>(bytes[i] ^ 0xff);
}

class ServedSlots final : public SlotReads {
 public:
  // Adds a slot with ByteOf(version, .) in it; its lease and grant are its number, from 1 on.
  uint64_t Add(uint64_t num_bytes, uint64_t version) {
    auto memory = SlotMemory::Create(slots_.size() + 1, num_bytes, SlotMemory::Writer::kDaemon);
    EXPECT_TRUE(memory.ok()) << memory.status();
    const auto bytes = (*memory)->writable_bytes();
    for (uint64_t i = 0; i < num_bytes; ++i) bytes[i] = ByteOf(version, i);
    return AddMemory(*std::move(memory), version);
  }
  uint64_t AddMemory(std::unique_ptr<SlotMemory> memory, uint64_t version) {
    return AddMemory(std::move(memory), version, {version, 7});
  }
  uint64_t AddMemory(std::unique_ptr<SlotMemory> memory, uint64_t version, const Hash128& digest) {
    Slot slot;
    slot.digest = digest;
    slot.memory = std::move(memory);
    slot.fd = *slot.memory->DuplicateForReader();
    slot.grant = slots_.size() + 1;
    slot.version = version;
    slots_.push_back(std::move(slot));
    return slots_.size();
  }
  std::span<std::byte> bytes(uint64_t lease) { return slots_[lease - 1].memory->writable_bytes(); }

  PullGrant GrantOf(uint64_t lease) const {
    PullGrant grant;
    grant.lease.lease_id = lease;
    grant.lease.grant = slots_[lease - 1].grant;
    grant.lease.version = slots_[lease - 1].version;
    grant.lease.digest = slots_[lease - 1].digest;
    grant.epoch = 3;
    grant.token = {lease * 11, 5};
    return grant;
  }

  // As a daemon that has verified the slot.
  void HashTiles(uint64_t lease) {
    slots_[lease - 1].tile_hashes = TileHashes(slots_[lease - 1].memory->bytes(), 2);
  }

  // What becomes of lease, slot and epoch; any thread.
  void EndLease() { lease_ended_ = true; }
  void RaiseGrants() { ++grant_raised_; }
  void RaiseEpoch() { ++epoch_; }
  // Of every slot; null: the slot's own.
  const RmaSource* windows_instead = nullptr;
  // Called after the server hashed and before it looks at the handle again.
  std::function<void()> before_second_look;
  std::atomic<uint64_t> num_opens{0};

  StatusOr<ReadableSlot> OpenForRead(const ReadHandle& handle) override {
    ++num_opens;
    TITAN_RETURN_IF_ERROR(Check(handle));
    const Slot& slot = slots_[handle.lease_id - 1];
    ReadableSlot readable;
    readable.fd = slot.fd.get();
    readable.bytes = slot.memory->bytes();
    readable.facts = {readable.bytes.size(), slot.version, slot.digest};
    readable.tile_hashes = slot.tile_hashes;
    readable.windows = windows_instead != nullptr ? windows_instead : slot.memory->windows();
    readable.owner = slot.memory;
    return readable;
  }
  Status CheckReadable(const ReadHandle& handle) override {
    if (before_second_look) before_second_look();
    return Check(handle);
  }

 private:
  struct Slot {
    std::shared_ptr<SlotMemory> memory;
    UniqueFd fd;
    uint64_t grant = 0;
    uint64_t version = 0;
    Hash128 digest;
    std::vector<uint64_t> tile_hashes;
  };

  Status Check(const ReadHandle& handle) const {
    if (handle.lease_id == 0 || handle.lease_id > slots_.size() || lease_ended_) {
      return WithReason(Aborted("the lease has ended"), kLeaseExpired);
    }
    const Slot& slot = slots_[handle.lease_id - 1];
    if (handle.token != Hash128{handle.lease_id * 11, 5}) {
      return FailedPrecondition("the token is not the lease's");
    }
    if (handle.epoch != epoch_) {
      return WithReason(Aborted("the epoch is superseded"), kEpochSuperseded);
    }
    if (handle.grant != slot.grant + grant_raised_) {
      return WithReason(Aborted("the grant number is stale"), kStaleHandle);
    }
    return OkStatus();
  }

  std::vector<Slot> slots_;
  std::atomic<bool> lease_ended_{false};
  std::atomic<uint64_t> grant_raised_{0}, epoch_{3};
};

}  // namespace titan::weightstore::lanes::testing

#endif  // TITAN_TESTS_SUPPORT_SERVED_SLOTS_H_
