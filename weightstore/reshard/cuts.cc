// SPDX-License-Identifier: Apache-2.0
#include "weightstore/reshard/cuts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "weightstore/reshard/boxes.h"

namespace titan::weightstore::reshard {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr size_t kNoGroup = ~size_t{0};

struct Part {
  std::vector<int64_t> begin, shape;
  bool held = true;
};

Status CheckRule(const TensorSpec& tensor, const AxisRule& rule, uint32_t axis_size) {
  const std::string where = "rules of tensor '" + tensor.name + "': ";
  switch (rule.kind) {
    case AxisRule::Kind::kReplicate:
      return OkStatus();
    case AxisRule::Kind::kOwn:
      if (rule.owner >= axis_size) {
        return InvalidArgument(where + "owner " + std::to_string(rule.owner) + " of an axis of " +
                               std::to_string(axis_size));
      }
      return OkStatus();
    case AxisRule::Kind::kShard:
      if (rule.dimension >= tensor.shape.size()) {
        return InvalidArgument(where + "dimension " + std::to_string(rule.dimension) +
                               " of a tensor of " + std::to_string(tensor.shape.size()) +
                               " dimensions; replicate it instead");
      }
      if (rule.granule < 1) return InvalidArgument(where + "granule: must be at least 1");
      if (rule.pieces > axis_size) {
        return InvalidArgument(where + "pieces: " + std::to_string(rule.pieces) +
                               " of an axis of " + std::to_string(axis_size));
      }
      return OkStatus();
  }
  return InvalidArgument(where + "kind: must be kReplicate, kShard or kOwn");
}

// Narrows a part by one axis.
void Apply(const AxisRule& rule, uint32_t coordinate, uint32_t axis_size, Part* part) {
  if (rule.kind == AxisRule::Kind::kOwn) part->held &= coordinate == rule.owner;
  if (rule.kind != AxisRule::Kind::kShard) return;
  const auto d = rule.dimension;
  const int64_t pieces = rule.pieces == 0 ? axis_size : rule.pieces;
  const int64_t piece = static_cast<int64_t>(coordinate) * pieces / axis_size;
  const int64_t size = part->shape[d];
  const int64_t granules = size / rule.granule + (size % rule.granule != 0 ? 1 : 0);
  const int64_t each = granules / pieces + (granules % pieces != 0 ? 1 : 0);
  // granules * granule is less than size + granule: no overflow for granules that fit the tensor.
  const auto edge = [&](int64_t index) {
    const int64_t at = std::min(granules, index * each);
    return at == granules ? size : at * rule.granule;
  };
  const int64_t begin = edge(piece), end = edge(piece + 1);
  part->begin[d] += begin;
  part->shape[d] = end - begin;
}

uint64_t BytesOf(const TensorSpec& tensor, const Part& part) {
  TensorSpec local = tensor;
  local.shape = part.shape;
  const Grid grid = GridOf(local);
  uint64_t bytes = grid.unit_bytes;
  for (const int64_t extent : grid.shape) bytes *= static_cast<uint64_t>(extent);
  return bytes;
}

class Cutter {
 public:
  explicit Cutter(const MeshCut& cut) : cut_(cut), group_of_(cut.tensors.size(), kNoGroup) {}

  StatusOr<Placement> Run() {
    TITAN_RETURN_IF_ERROR(Check());
    uint64_t ranks = 1;
    for (const uint32_t size : cut_.mesh) ranks *= size;
    Placement placement;
    placement.tensors = cut_.tensors;
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      Participant participant;
      for (uint32_t t = 0; t < cut_.tensors.size(); ++t) {
        const size_t group = group_of_[t];
        if (group == kNoGroup) {
          const Part part = PartOf(t, rank);
          if (!part.held) continue;
          const uint64_t begin = Grow(BytesOf(cut_.tensors[t], part), &participant);
          participant.fragments.push_back({t, part.begin, part.shape, begin, {}});
        } else if (cut_.fused[group].tensors.front() == t) {
          TITAN_RETURN_IF_ERROR(AppendGroup(cut_.fused[group], rank, &participant));
        }
      }
      placement.participants.push_back(std::move(participant));
    }
    TITAN_RETURN_IF_ERROR(Validate(placement));
    return placement;
  }

 private:
  Status Check() {
    uint64_t ranks = 1;
    for (const uint32_t size : cut_.mesh) {
      if (size == 0) return InvalidArgument("mesh: an axis of size 0");
      ranks *= size;
      if (ranks > kMaxParticipants) return InvalidArgument("overflow: mesh: more than 2^16 ranks");
    }
    if (cut_.rules.size() != cut_.tensors.size()) {
      return InvalidArgument("rules: one list for each tensor");
    }
    for (size_t t = 0; t < cut_.tensors.size(); ++t) {
      TITAN_RETURN_IF_ERROR(CheckTensor(cut_.tensors[t]));
      if (cut_.rules[t].size() != cut_.mesh.size()) {
        return InvalidArgument("rules of tensor '" + cut_.tensors[t].name +
                               "': one for each axis of the mesh");
      }
      for (size_t axis = 0; axis < cut_.mesh.size(); ++axis) {
        TITAN_RETURN_IF_ERROR(CheckRule(cut_.tensors[t], cut_.rules[t][axis], cut_.mesh[axis]));
      }
    }
    for (size_t g = 0; g < cut_.fused.size(); ++g) TITAN_RETURN_IF_ERROR(CheckGroup(g));
    return OkStatus();
  }

  Status CheckGroup(size_t g) {
    const FusedGroup& group = cut_.fused[g];
    if (group.tensors.size() < 2) return InvalidArgument("fused: a group of fewer than 2 tensors");
    for (const uint32_t t : group.tensors) {
      if (t >= cut_.tensors.size()) return InvalidArgument("fused: a tensor that is not there");
      const TensorSpec& tensor = cut_.tensors[t];
      const TensorSpec& first = cut_.tensors[group.tensors.front()];
      if (group_of_[t] != kNoGroup) {
        return InvalidArgument("fused: tensor '" + tensor.name + "' is in two groups, or twice");
      }
      if (tensor.layout != Layout::kRows || tensor.dtype != first.dtype ||
          tensor.shape.size() != first.shape.size() || group.dimension >= tensor.shape.size()) {
        return InvalidArgument("fused: tensor '" + tensor.name + "' does not fit '" + first.name +
                               "': layout rows, equal dtypes and numbers of dimensions");
      }
      group_of_[t] = g;
    }
    return OkStatus();
  }

  Part PartOf(uint32_t tensor, uint64_t rank) const {
    Part part;
    part.shape = cut_.tensors[tensor].shape;
    part.begin.assign(part.shape.size(), 0);
    uint64_t ranks_inside = 1;
    std::vector<uint32_t> coordinates(cut_.mesh.size());
    for (size_t axis = cut_.mesh.size(); axis-- > 0;) {
      coordinates[axis] = static_cast<uint32_t>(rank / ranks_inside % cut_.mesh[axis]);
      ranks_inside *= cut_.mesh[axis];
    }
    for (size_t axis = 0; axis < cut_.mesh.size(); ++axis) {
      Apply(cut_.rules[tensor][axis], coordinates[axis], cut_.mesh[axis], &part);
    }
    return part;
  }

  // The begin of a new block at the slot's end.
  static uint64_t Grow(uint64_t bytes, Participant* participant) {
    const uint64_t begin = (participant->slot_bytes + kAlignment - 1) / kAlignment * kAlignment;
    participant->slot_bytes = begin + bytes;
    return begin;
  }

  Status AppendGroup(const FusedGroup& group, uint64_t rank, Participant* participant) const {
    std::vector<std::pair<uint32_t, Part>> parts;
    for (const uint32_t t : group.tensors) {
      Part part = PartOf(t, rank);
      if (part.held) parts.emplace_back(t, std::move(part));
    }
    if (parts.empty()) return OkStatus();
    std::vector<int64_t> block = parts.front().second.shape;
    block[group.dimension] = 0;
    for (const auto& [t, part] : parts) {
      for (size_t d = 0; d < block.size(); ++d) {
        const bool along = d == group.dimension;
        if (along ? group.interleaved && part.shape[d] != parts.front().second.shape[d]
                  : part.shape[d] != block[d]) {
          return InvalidArgument(
              "fused: on rank " + std::to_string(rank) + " tensor '" + cut_.tensors[t].name +
              "' has " + std::to_string(part.shape[d]) + " elements along dimension " +
              std::to_string(d) + ", '" + cut_.tensors[parts.front().first].name + "' has " +
              std::to_string(parts.front().second.shape[d]) + "; cut both alike");
        }
      }
      block[group.dimension] += part.shape[group.dimension];
    }
    const auto element_bytes =
        static_cast<uint64_t>(ElementBytes(cut_.tensors[parts.front().first].dtype));
    std::vector<uint64_t> strides(block.size());
    uint64_t bytes = element_bytes;
    for (size_t d = block.size(); d-- > 0;) {
      strides[d] = bytes;
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(block[d]), &bytes) ||
          bytes > kMaxBytes) {
        return InvalidArgument("overflow: fused: more than 2^60 bytes");
      }
    }
    const uint64_t step = strides[group.dimension];
    const uint64_t begin = Grow(bytes, participant);
    uint64_t inside = 0;
    for (const auto& [t, part] : parts) {
      std::vector<uint64_t> own = strides;
      if (group.interleaved) own[group.dimension] = step * parts.size();
      participant->fragments.push_back({t, part.begin, part.shape, begin + inside, std::move(own)});
      inside +=
          group.interleaved ? step : step * static_cast<uint64_t>(part.shape[group.dimension]);
    }
    return OkStatus();
  }

  const MeshCut& cut_;
  std::vector<size_t> group_of_;  // of each tensor
};

}  // namespace

StatusOr<Placement> CutByMesh(const MeshCut& cut) { return Cutter(cut).Run(); }

}  // namespace titan::weightstore::reshard
