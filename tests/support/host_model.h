// SPDX-License-Identifier: Apache-2.0
//
// A host as a test of StoreState needs it: it does what it is told, knows which version the bytes
// of each slot are, and says what it has. Test code.
#ifndef TITAN_TESTS_SUPPORT_HOST_MODEL_H_
#define TITAN_TESTS_SUPPORT_HOST_MODEL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tests/support/host_commands.h"
#include "weightstore/store_state.h"

namespace titan::weightstore::testing {

inline constexpr uint64_t kGarbage = ~uint64_t{0};

// Of the bytes of a version, or of kGarbage.
inline Hash128 DigestOf(uint64_t version) { return {version * 0x9E3779B97F4A7C15u + 1, version}; }

// What a trainer and a reader believe.
struct Trainer {
  uint64_t epoch = 0;
  uint64_t next = 0;
  bool open = false, sealed = false, mapped = false;
  uint64_t version = 0, grant = 0, slot = 0;
};

struct Reader {
  uint64_t lease = 0, grant = 0, version = 0, slot = 0;
  bool mapped = false;
  int64_t since = 0;
};

class HostModel {
 protected:
  // What the host would say of itself; mapped: leases.
  HostReport Report(const std::set<uint64_t>& mapped) const {
    HostReport report;
    for (const uint64_t slot : live_slots_) {
      const MakeSlot& made = slots_.at(slot);
      SlotReport one;
      one.run_id = made.run_id;
      one.epoch = made.epoch;
      one.num_bytes = made.num_bytes;
      one.made = std::find(making_.begin(), making_.end(), slot) == making_.end();
      if (header_.contains(slot)) one.header = header_.at(slot);
      one.header.slot_id = slot;
      one.open_for_writing = open_for_writing_.contains(slot);
      report.slots.push_back(one);
    }
    for (const auto& [lease, allowed] : allowed_) {
      report.leases.push_back({allowed, mapped.contains(lease)});
    }
    for (const uint64_t epoch : gone_) report.gone_writers.push_back({"run", epoch});
    return report;
  }

  void Do(const MakeSlot& command) {
    ASSERT_TRUE(live_slots_.insert(command.slot_id).second);
    slots_[command.slot_id] = command;
    making_.push_back(command.slot_id);
    ++num_to_make_;
  }
  void Do(const AdoptSlot& command) {
    ASSERT_TRUE(live_slots_.insert(command.slot_id).second);
    slots_[command.slot_id] = {command.slot_id, command.manifest->slot_bytes, command.run_id,
                               kNoTrainer, 0};
    making_.push_back(command.slot_id);
    const uint64_t version = command.digest.high;  // DigestOf
    offered_[command.slot_id] = version;
    content_[command.slot_id] = version;
  }
  void Do(const RefuseOffer&) { FAIL() << "nobody asked for it"; }
  void Do(const DropSlot& command) {
    ASSERT_EQ(live_slots_.erase(command.slot_id), 1u);
    for (const auto& [lease, allowed] : allowed_) {
      if (allowed.slot_id != command.slot_id) continue;
      ASSERT_NE(allowed.grant, header_.at(command.slot_id).grant);
    }
  }
  void Do(const WriteHeader& command) {
    const uint64_t slot = command.fields.slot_id;
    ASSERT_TRUE(live_slots_.contains(slot));
    header_[slot] = command.fields;
    open_for_writing_.erase(slot);
    if (command.open_for_writing) open_for_writing_.insert(slot);
  }
  void Do(const AllowLease& command) {
    ASSERT_EQ(header_.at(command.slot_id).grant, command.grant);
    allowed_[command.lease_id] = command;
  }
  void Do(const EndLease& command) { allowed_.erase(command.lease_id); }
  void Do(const HurrySlots&) { ASSERT_FALSE(making_.empty()); }

  std::map<uint64_t, uint64_t> content_;  // slot -> version its bytes are
  std::map<uint64_t, SlotHeaderFields> header_;
  std::map<uint64_t, MakeSlot> slots_;
  std::set<uint64_t> gone_;  // epochs whose writers closed their connections
  std::set<uint64_t> open_for_writing_;
  std::map<uint64_t, AllowLease> allowed_;  // leases
  std::set<uint64_t> live_slots_;
  size_t num_to_make_ = 0;
  std::vector<uint64_t> making_;
  std::map<uint64_t, uint64_t> offered_;  // slots that are being adopted, to versions
};

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_HOST_MODEL_H_
