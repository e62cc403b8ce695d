// SPDX-License-Identifier: Apache-2.0
//
// Placements of the usual parallel layouts: a mesh of ranks (say 4 of FSDP x 2 of TP) and, for each
// tensor and axis of the mesh, a rule. FSDP = every tensor cut along dimension 0; TP = along the
// dimension that the model's code cuts, or replicated; EP = an expert's tensors owned by one
// coordinate, or a stacked tensor cut along its experts; replicas of data parallelism = an axis
// that replicates everything. Pure functions, any thread.
#ifndef TITAN_WEIGHTSTORE_RESHARD_CUTS_H_
#define TITAN_WEIGHTSTORE_RESHARD_CUTS_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "weightstore/reshard/placement.h"

namespace titan::weightstore::reshard {

// What an axis of the mesh does to a tensor.
struct AxisRule {
  enum class Kind : uint8_t {
    kReplicate,  // every coordinate holds the same part
    kShard,      // coordinate c of n holds the c-th of n pieces along `dimension`
    kOwn,        // coordinate `owner` holds it, the others nothing
  };
  Kind kind = Kind::kReplicate;
  uint32_t dimension = 0;  // kShard
  // kShard: pieces are whole multiples of this, except the last one that is not empty: 1 for rows,
  // the head's size for attention, 32 for the kernels' panels. With fewer granules than coordinates
  // the last ones hold nothing, or share (below).
  int64_t granule = 1;
  // kShard: the number of different pieces, 0 = one for each coordinate. With fewer (key and value
  // heads under a larger TP) neighbouring coordinates hold the same one.
  uint32_t pieces = 0;
  uint32_t owner = 0;  // kOwn
};

// Tensors whose parts lie in one block of every slot, concatenated along a dimension (qkv,
// gate/up), or interleaved element by element along it.
struct FusedGroup {
  std::vector<uint32_t> tensors;  // at least 2, in the block's order, of layout rows and one dtype
  uint32_t dimension = 0;
  bool interleaved = false;
};

struct MeshCut {
  std::vector<TensorSpec> tensors;
  std::vector<uint32_t> mesh;                // sizes of the axes, the last one varies fastest
  std::vector<std::vector<AxisRule>> rules;  // [tensor][axis]
  std::vector<FusedGroup> fused;
};

// Participant r is the rank with row-major coordinates r in the mesh; its fragments are in the
// order of the tensors (a fused group where its first tensor stands), each beginning at a multiple
// of 64 bytes. InvalidArgument, naming the tensor and the fix: what Validate refuses, a dimension
// that is not there, a granule below 1, an owner or pieces outside of the axis; "fused: ...": parts
// of a group that do not fit together on some rank, or a tensor in two groups.
StatusOr<Placement> CutByMesh(const MeshCut& cut);

}  // namespace titan::weightstore::reshard

#endif  // TITAN_WEIGHTSTORE_RESHARD_CUTS_H_
