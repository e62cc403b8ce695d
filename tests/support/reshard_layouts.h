// SPDX-License-Identifier: Apache-2.0
//
// Made-up layouts of made-up weights, and where an element of a fragment lies, by formulas of its
// own that know nothing of the planner's. Test code, one thread.
#ifndef TITAN_TESTS_SUPPORT_RESHARD_LAYOUTS_H_
#define TITAN_TESTS_SUPPORT_RESHARD_LAYOUTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "weightstore/reshard/cuts.h"
#include "weightstore/reshard/placement.h"

namespace titan::weightstore::reshard::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // In [0, n).
  uint64_t Below(uint64_t n) { return engine_() % n; }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low + 1)));
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

// Bytes of element number `index` of a tensor: a hash.
inline uint64_t ElementValue(const std::string& name, uint64_t index) {
  return Hash64(&index, sizeof(index), Hash64(name));
}

// Calls see(row-major index in the tensor, byte offset in the slot) for each element of a fragment.
template <typename See>
void EachElement(const TensorSpec& tensor, const Fragment& fragment, See see) {
  const size_t rank = tensor.shape.size();
  const uint64_t bytes = tensor.dtype == DType::kF32 ? 4 : 2;
  uint64_t count = 1;
  for (const int64_t extent : fragment.shape) count *= static_cast<uint64_t>(extent);
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<uint64_t> index(rank);  // within the fragment
    uint64_t rest = i;
    for (size_t d = rank; d-- > 0;) {
      index[d] = rest % static_cast<uint64_t>(fragment.shape[d]);
      rest /= static_cast<uint64_t>(fragment.shape[d]);
    }
    uint64_t at = 0;
    for (size_t d = 0; d < rank; ++d) {
      at = at * static_cast<uint64_t>(tensor.shape[d]) + static_cast<uint64_t>(fragment.begin[d]) +
           index[d];
    }
    uint64_t offset = fragment.slot_offset;
    if (tensor.layout == Layout::kPanels32) {
      const auto columns = static_cast<uint64_t>(fragment.shape[1]);
      offset += ((index[0] / 32 * columns + index[1]) * 32 + index[0] % 32) * 4;
    } else if (tensor.layout == Layout::kPanels32K2) {
      const auto pairs = static_cast<uint64_t>(fragment.shape[1] + 1) / 2;
      offset += (index[0] / 32 * pairs + index[1] / 2) * 128 + index[0] % 32 * 4 +
                (index[1] % 2 == 0 ? 2 : 0);
    } else if (fragment.strides.empty()) {
      offset += i * bytes;
    } else {
      for (size_t d = 0; d < rank; ++d) offset += index[d] * fragment.strides[d];
    }
    see(at, offset);
  }
}

inline uint64_t ElementBytesOf(const TensorSpec& tensor) {
  return tensor.dtype == DType::kF32 ? 4 : 2;
}

// Slots of a placement with the weights in them, `filler` elsewhere.
inline std::vector<std::vector<std::byte>> FilledSlots(const Placement& placement,
                                                       std::byte filler) {
  std::vector<std::vector<std::byte>> slots;
  for (const Participant& participant : placement.participants) {
    std::vector<std::byte> slot(participant.slot_bytes, filler);
    for (const Fragment& fragment : participant.fragments) {
      const TensorSpec& tensor = placement.tensors[fragment.tensor];
      EachElement(tensor, fragment, [&](uint64_t index, uint64_t offset) {
        const uint64_t value = ElementValue(tensor.name, index);
        std::memcpy(&slot[offset], &value, ElementBytesOf(tensor));
      });
    }
    slots.push_back(std::move(slot));
  }
  return slots;
}

inline std::vector<TensorSpec> RandomTensors(Random& random) {
  std::vector<TensorSpec> tensors(static_cast<size_t>(random.Between(1, 4)));
  for (size_t t = 0; t < tensors.size(); ++t) {
    TensorSpec& tensor = tensors[t];
    tensor.name = "t" + std::to_string(t);
    tensor.dtype = static_cast<DType>(random.Between(1, 3));
    if (random.OneIn(5)) {
      tensor.layout = random.OneIn(2) ? Layout::kPanels32 : Layout::kPanels32K2;
      tensor.dtype = tensor.layout == Layout::kPanels32 ? DType::kF32 : DType::kBf16;
      tensor.shape = {random.Between(1, 70), random.Between(1, 5)};
      continue;
    }
    const int64_t rank = random.Between(0, 4);
    for (int64_t d = 0; d < rank; ++d) tensor.shape.push_back(random.Between(1, rank > 2 ? 5 : 9));
    if (random.OneIn(20) && rank > 0) tensor.shape[random.Below(static_cast<uint64_t>(rank))] = 0;
    if (random.OneIn(12)) tensor.shape = {random.Between(1, 3), random.Between(200, 600)};
  }
  // Pairs that can be fused.
  if (tensors.size() >= 2 && random.OneIn(2)) {
    tensors[1].shape = tensors[0].shape;
    tensors[1].dtype = tensors[0].dtype;
    tensors[1].layout = tensors[0].layout;
  }
  return tensors;
}

inline int64_t RandomGranule(Random& random, const TensorSpec& tensor, uint32_t dimension) {
  if (tensor.layout == Layout::kRows) return random.OneIn(8) ? 256 : random.Between(1, 3);
  if (dimension == 0) return 32;
  return tensor.layout == Layout::kPanels32K2 ? 2 : 1;
}

// A mesh with random rules: FSDP, TP, EP and replicas, mixed at random; always covers everything.
inline MeshCut RandomMesh(Random& random, std::vector<TensorSpec> tensors) {
  MeshCut cut;
  cut.tensors = std::move(tensors);
  const int64_t axes = random.Between(0, 2);
  for (int64_t axis = 0; axis < axes; ++axis) {
    cut.mesh.push_back(static_cast<uint32_t>(random.Between(1, 4)));
  }
  for (const TensorSpec& tensor : cut.tensors) {
    std::vector<AxisRule> rules;
    for (const uint32_t size : cut.mesh) {
      AxisRule rule;
      const uint64_t kind = random.Below(8);
      if (kind == 0) {
        rule.kind = AxisRule::Kind::kOwn;
        rule.owner = static_cast<uint32_t>(random.Below(size));
      } else if (kind < 6 && !tensor.shape.empty()) {
        rule.kind = AxisRule::Kind::kShard;
        rule.dimension = static_cast<uint32_t>(random.Below(tensor.shape.size()));
        rule.granule = RandomGranule(random, tensor, rule.dimension);
        if (random.OneIn(4)) rule.pieces = static_cast<uint32_t>(random.Between(1, size));
      }
      rules.push_back(rule);
    }
    cut.rules.push_back(std::move(rules));
  }
  if (cut.tensors.size() >= 2 && cut.tensors[0].shape == cut.tensors[1].shape &&
      cut.tensors[0].dtype == cut.tensors[1].dtype && cut.tensors[0].layout == Layout::kRows &&
      cut.tensors[1].layout == Layout::kRows && !cut.tensors[0].shape.empty() && random.OneIn(2)) {
    cut.rules[1] = cut.rules[0];
    cut.fused.push_back({{0, 1},
                         static_cast<uint32_t>(random.Below(cut.tensors[0].shape.size())),
                         random.OneIn(2)});
  }
  return cut;
}

// Every tensor split at random places again and again; the boxes dealt to random participants, some
// to two, at random offsets.
inline Placement RandomBoxes(Random& random, std::vector<TensorSpec> tensors) {
  Placement placement;
  placement.tensors = std::move(tensors);
  placement.participants.resize(static_cast<size_t>(random.Between(1, 4)));
  for (uint32_t t = 0; t < placement.tensors.size(); ++t) {
    const TensorSpec& tensor = placement.tensors[t];
    std::vector<Fragment> boxes = {
        {t, std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape, 0, {}}};
    for (int64_t splits = random.Between(0, 5); splits > 0 && !tensor.shape.empty(); --splits) {
      Fragment& box = boxes[random.Below(boxes.size())];
      const auto d = random.Below(tensor.shape.size());
      int64_t size = random.Between(0, box.shape[d]);
      if (tensor.layout != Layout::kRows) {
        size -= size % (d == 0 ? 32 : tensor.layout == Layout::kPanels32K2 ? 2 : 1);
      }
      Fragment rest = box;
      rest.begin[d] += size;
      rest.shape[d] -= size;
      box.shape[d] = size;
      boxes.push_back(std::move(rest));
    }
    for (Fragment& box : boxes) {
      const size_t first = random.Below(placement.participants.size());
      const size_t copies = random.OneIn(4) ? 2 : 1;
      for (size_t c = 0; c < std::min(copies, placement.participants.size()); ++c) {
        Participant& participant =
            placement.participants[(first + c) % placement.participants.size()];
        uint64_t bytes = ElementBytesOf(tensor);
        if (tensor.layout == Layout::kRows) {
          for (const int64_t extent : box.shape) bytes *= static_cast<uint64_t>(extent);
        } else {
          bytes = 128 * static_cast<uint64_t>((box.shape[0] + 31) / 32);
          bytes *= static_cast<uint64_t>(
              tensor.layout == Layout::kPanels32K2 ? (box.shape[1] + 1) / 2 : box.shape[1]);
        }
        box.slot_offset = participant.slot_bytes + random.Below(3) * 7;
        participant.slot_bytes = box.slot_offset + bytes;
        participant.fragments.push_back(box);
      }
    }
  }
  for (Participant& participant : placement.participants) {
    participant.slot_bytes += random.Below(5);
    std::vector<Fragment>& fragments = participant.fragments;
    for (size_t i = fragments.size(); i > 1; --i)
      std::swap(fragments[i - 1], fragments[random.Below(i)]);
  }
  return placement;
}

}  // namespace titan::weightstore::reshard::testing

#endif  // TITAN_TESTS_SUPPORT_RESHARD_LAYOUTS_H_
