// SPDX-License-Identifier: Apache-2.0
//
// Which part of which tensor lies where in whose slot: the layout of one side (all trainer ranks,
// or all generators), free of addresses. A fused tensor (qkv, gate/up) is not a kind of its own:
// its parts are fragments of the canonical tensors that lie beside each other, or interleaved, in
// the slot. Values, any thread; no I/O.
//
//   tensor "w" [8][6]                     participant 0        participant 1
//   rows 0..4: participant 0              {begin {0, 0},       {begin {4, 0},
//   rows 4..8: participant 1               shape {4, 6}, ..}    shape {4, 6}, ..}
#ifndef TITAN_WEIGHTSTORE_RESHARD_PLACEMENT_H_
#define TITAN_WEIGHTSTORE_RESHARD_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/manifest.h"

namespace titan::weightstore::reshard {

inline constexpr size_t kMaxRank = 8;
inline constexpr size_t kMaxTensors = size_t{1} << 20;
inline constexpr size_t kMaxParticipants = size_t{1} << 16;
inline constexpr size_t kMaxFragments = size_t{1} << 22;
// Of one tensor in one slot.
inline constexpr size_t kMaxFragmentsOfTensor = 4096;

struct TensorSpec {
  std::string name;            // canonical HF name
  std::vector<int64_t> shape;  // whole tensor; empty = one element; a dimension may be 0
  DType dtype = DType::kF32;
  // As in Manifest. The kernels' layouts are cut at whole panels (multiples of 32 rows, of 2
  // columns for kPanels32K2) or at the tensor's end.
  Layout layout = Layout::kRows;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

struct Fragment {
  uint32_t tensor = 0;         // index into Placement::tensors
  std::vector<int64_t> begin;  // elements, one for each dimension
  std::vector<int64_t> shape;  // elements; one of them 0: the fragment is empty
  uint64_t slot_offset = 0;    // bytes, of its first element
  // Bytes from an element to the next one of each dimension, for kRows alone. Empty: contiguous.
  std::vector<uint64_t> strides;

  friend bool operator==(const Fragment&, const Fragment&) = default;
};

// One slot: a rank of the trainer, or a generator's.
struct Participant {
  uint64_t slot_bytes = 0;
  std::vector<Fragment> fragments;

  friend bool operator==(const Participant&, const Participant&) = default;
};

struct Placement {
  std::vector<TensorSpec> tensors;
  std::vector<Participant> participants;

  friend bool operator==(const Placement&, const Placement&) = default;
};

// InvalidArgument, its message beginning with what is wrong and naming tensor and participant:
//   "shape"     a name that is empty or doubled, more than kMaxRank dimensions, negative ones, a
//   box
//               outside of its tensor, a cut through a panel, a layout that does not fit
//   "overflow"  sizes or offsets of more than 2^60 bytes, or more items than the limits above
//   "bounds"    a fragment ends outside of its slot
//   "overlap"   two fragments of a slot share bytes or elements, or one shares bytes with itself
// Fragments of different participants may hold the same elements: replicas.
Status Validate(const Placement& placement);

// All elements of all tensors are held by somebody. InvalidArgument "gap": names the tensor and the
// first box that nobody holds. REQUIRES: a validated placement.
Status CheckCovers(const Placement& placement);

// xxh3-128 of the placement's canonical bytes: equal placements have equal digests.
Hash128 DigestOf(const Placement& placement);

}  // namespace titan::weightstore::reshard

#endif  // TITAN_WEIGHTSTORE_RESHARD_PLACEMENT_H_
