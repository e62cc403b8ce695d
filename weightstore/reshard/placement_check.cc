// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "weightstore/reshard/boxes.h"
#include "weightstore/reshard/placement.h"

namespace titan::weightstore::reshard {
namespace {

std::string Where(const Placement& placement, size_t participant, uint32_t tensor) {
  return "tensor '" + placement.tensors[tensor].name + "' of participant " +
         std::to_string(participant);
}

struct Placed {
  uint32_t tensor = 0;
  GridFragment on_grid;
};

// No two of one slot's fragments share a byte: those whose ranges meet are compared.
Status CheckBytes(const Placement& placement, size_t participant, std::vector<Placed>& placed) {
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return a.on_grid.slot_offset < b.on_grid.slot_offset;
  });
  std::vector<const Placed*> open;  // that end behind the begin of the one in hand
  for (const Placed& next : placed) {
    std::erase_if(open,
                  [&](const Placed* p) { return p->on_grid.end <= next.on_grid.slot_offset; });
    if (open.size() > kMaxFragmentsOfTensor) {
      return InvalidArgument("overflow: participant " + std::to_string(participant) +
                             ": too many interleaved fragments");
    }
    for (const Placed* other : open) {
      TITAN_ASSIGN_OR_RETURN(
          const bool shares,
          SharesBytes(other->on_grid, GridOf(placement.tensors[other->tensor]).unit_bytes,
                      next.on_grid, GridOf(placement.tensors[next.tensor]).unit_bytes));
      if (shares) {
        return InvalidArgument("overlap: " + Where(placement, participant, next.tensor) +
                               " shares bytes of the slot with tensor '" +
                               placement.tensors[other->tensor].name + "'");
      }
    }
    open.push_back(&next);
  }
  return OkStatus();
}

// No element is twice in one slot.
Status CheckElements(const Placement& placement, size_t participant,
                     const std::vector<Placed>& placed) {
  std::map<uint32_t, std::vector<const Box*>> boxes;
  for (const Placed& p : placed) boxes[p.tensor].push_back(&p.on_grid.box);
  for (auto& [tensor, of_tensor] : boxes) {
    if (of_tensor.size() > kMaxFragmentsOfTensor) {
      return InvalidArgument("overflow: " + Where(placement, participant, tensor) +
                             ": more than 4096 fragments");
    }
    for (size_t i = 0; i < of_tensor.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Box both = Intersect(*of_tensor[i], *of_tensor[j]);
        if (!both.empty()) {
          return InvalidArgument("overlap: " + Where(placement, participant, tensor) + ": " +
                                 ToText(both) + " is held twice");
        }
      }
    }
  }
  return OkStatus();
}

Status CheckCounts(const Placement& placement) {
  size_t fragments = 0;
  for (const Participant& participant : placement.participants) {
    fragments += participant.fragments.size();
    if (participant.slot_bytes > kMaxBytes) {
      return InvalidArgument("overflow: a slot of more than 2^60 bytes");
    }
  }
  if (placement.tensors.size() > kMaxTensors || placement.participants.size() > kMaxParticipants ||
      fragments > kMaxFragments) {
    return InvalidArgument(
        "overflow: a placement has at most 2^20 tensors, 2^16 participants and "
        "2^22 fragments");
  }
  return OkStatus();
}

}  // namespace

Status Validate(const Placement& placement) {
  TITAN_RETURN_IF_ERROR(CheckCounts(placement));
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : placement.tensors) {
    TITAN_RETURN_IF_ERROR(CheckTensor(tensor));
    if (!names.insert(tensor.name).second) {
      return InvalidArgument("shape: two tensors are named '" + tensor.name + "'");
    }
  }
  for (size_t p = 0; p < placement.participants.size(); ++p) {
    std::vector<Placed> placed;
    for (const Fragment& fragment : placement.participants[p].fragments) {
      if (fragment.tensor >= placement.tensors.size()) {
        return InvalidArgument("shape: participant " + std::to_string(p) +
                               ": a fragment of tensor number " + std::to_string(fragment.tensor) +
                               " of " + std::to_string(placement.tensors.size()));
      }
      Placed next{.tensor = fragment.tensor};
      TITAN_RETURN_IF_ERROR(PlaceOnGrid(placement.tensors[fragment.tensor], fragment,
                                        placement.participants[p].slot_bytes,
                                        Where(placement, p, fragment.tensor), &next.on_grid));
      if (!next.on_grid.box.empty()) placed.push_back(std::move(next));
    }
    TITAN_RETURN_IF_ERROR(CheckElements(placement, p, placed));
    TITAN_RETURN_IF_ERROR(CheckBytes(placement, p, placed));
  }
  return OkStatus();
}

Status CheckCovers(const Placement& placement) {
  std::vector<std::set<Box>> held(placement.tensors.size());  // replicas count once
  for (const Participant& participant : placement.participants) {
    for (const Fragment& fragment : participant.fragments) {
      GridFragment on_grid;
      TITAN_RETURN_IF_ERROR(PlaceOnGrid(placement.tensors[fragment.tensor], fragment,
                                        participant.slot_bytes, "a fragment", &on_grid));
      if (!on_grid.box.empty()) held[fragment.tensor].insert(std::move(on_grid.box));
    }
  }
  for (size_t t = 0; t < placement.tensors.size(); ++t) {
    const Grid grid = GridOf(placement.tensors[t]);
    const Box whole{std::vector<int64_t>(grid.shape.size(), 0), grid.shape};
    if (whole.empty()) continue;
    std::vector<Box> missing = {whole};
    for (const Box& box : held[t]) {
      std::vector<Box> rest;
      for (const Box& part : missing) Subtract(part, box, &rest);
      missing = std::move(rest);
      if (missing.empty()) break;
    }
    if (!missing.empty()) {
      return InvalidArgument("gap: tensor '" + placement.tensors[t].name + "': nobody holds " +
                             ToText(*std::min_element(missing.begin(), missing.end())));
    }
  }
  return OkStatus();
}

}  // namespace titan::weightstore::reshard
