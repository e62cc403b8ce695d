// SPDX-License-Identifier: Apache-2.0
//
// Strong ids of the domain and how they are made (architecture.md section 7, scheduling.md section 2).
// Values, any thread.
#ifndef TITAN_CORE_BASE_IDS_H_
#define TITAN_CORE_BASE_IDS_H_

#include <compare>
#include <cstdint>

#include "core/base/hash.h"

namespace titan {

// A number with a type of its own: StrongId<struct Tag> of different tags do not mix.
template <typename Tag, typename Value = uint64_t>
struct StrongId {
  Value value = 0;

  friend auto operator<=>(const StrongId&, const StrongId&) = default;
};

using Step = uint64_t;           // training step t makes version t + 1
using PolicyVersion = uint64_t;  // v: the policy after v steps; 0 is the start
using TokenId = int32_t;

using GroupId = StrongId<struct GroupIdTag>;    // one prompt, n samples
using SampleId = StrongId<struct SampleIdTag>;  // one reply of a group

// group id = step (40 bits) | slot (16) | candidate (8). REQUIRES: each fits.
constexpr GroupId MakeGroupId(Step step, uint32_t slot, uint32_t candidate) {
  return {step << 24 | static_cast<uint64_t>(slot) << 8 | candidate};
}
constexpr Step StepOf(GroupId id) { return id.value >> 24; }
constexpr uint32_t SlotOf(GroupId id) { return static_cast<uint32_t>(id.value >> 8) & 0xffff; }
constexpr uint32_t CandidateOf(GroupId id) { return static_cast<uint32_t>(id.value) & 0xff; }

// sample id = hash64(group id as u64, sample index as u32).
inline SampleId MakeSampleId(GroupId group, uint32_t sample_index) {
  return {HashFields(group.value, sample_index)};
}

}  // namespace titan

#endif  // TITAN_CORE_BASE_IDS_H_
