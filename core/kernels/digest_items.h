// SPDX-License-Identifier: Apache-2.0
//
// What the files that make the contract's items share: canned operands and the list of items.
// Internal to the module.
#ifndef TITAN_CORE_KERNELS_DIGEST_ITEMS_H_
#define TITAN_CORE_KERNELS_DIGEST_ITEMS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/philox.h"
#include "core/kernels/digest.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::kernels::internal {

inline constexpr uint64_t kHashSeed = 0;

// Canned operands: vector `id` is words 0.. of Philox with its own key, mapped to [-scale, scale).
inline std::vector<float> Canned(uint32_t id, int64_t n, float scale = 1.0f) {
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i += 4) {
    const PhiloxCounter words = Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {id, 0x74697461u});
    for (int64_t j = i; j < std::min(n, i + 4); ++j) {
      const int32_t word = static_cast<int32_t>(words[static_cast<size_t>(j - i)]);
      out[static_cast<size_t>(j)] = static_cast<float>(word >> 8) * 0x1p-23f * scale;
    }
  }
  return out;
}

inline std::vector<int32_t> CannedIds(uint32_t id, int64_t n, int32_t below) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) {
    const PhiloxCounter words = Philox4x32({static_cast<uint32_t>(i), 1, 0, 0}, {id, 0x74697461u});
    out.push_back(static_cast<int32_t>(
        (static_cast<uint64_t>(words[0]) * static_cast<uint64_t>(below)) >> 32));
  }
  return out;
}

class Items {
 public:
  void Text(std::string name, std::string value) {
    items_.push_back({std::move(name), std::move(value)});
  }
  // One item over several arrays: each is hashed, then the hashes.
  template <typename... Arrays>
  void Hash(std::string name, const Arrays&... arrays) {
    std::string parts;
    ((parts += ToHex(Hash128Of(arrays.data(), arrays.size() * sizeof(arrays[0]), kHashSeed))), ...);
    Text(std::move(name), ToHex(Hash128Of(parts.data(), parts.size(), kHashSeed)));
  }
  void Append(std::vector<ContractItem> more) {
    for (ContractItem& item : more) items_.push_back(std::move(item));
  }
  std::vector<ContractItem> Take() { return std::move(items_); }

 private:
  std::vector<ContractItem> items_;
};

// Of mixtures of experts, the gated delta rule and latent attention.
std::vector<ContractItem> ForwardBlockItems(Pool& pool);
std::vector<ContractItem> TrainingBlockItems(Pool& pool);

// A linear for every expert on the rows that chose it, in one of the modes; and the experts' weight
// gradients, whose panels are f32 in all of them.
void ExpertLinearItem(Pool& pool, std::string name, Element element, Inputs inputs, Items* items);
void ExpertGradientItem(Pool& pool, std::string name, Inputs inputs, Items* items);

}  // namespace titan::kernels::internal

#endif  // TITAN_CORE_KERNELS_DIGEST_ITEMS_H_
