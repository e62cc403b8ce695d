// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/check.h"

namespace titan::weightstore::lanes {

void PackRuns(std::span<const std::byte> slot, uint64_t offset, uint64_t run_bytes,
              std::span<const PackLoop> loops, std::byte* out) {
  TITAN_CHECK(loops.size() <= kMaxPackLoops);
  std::array<PackLoop, kMaxPackLoops> all;  // those that are missing are outermost, of one step
  std::copy(loops.begin(), loops.end(), all.end() - static_cast<std::ptrdiff_t>(loops.size()));
  for (uint64_t i = 0; i < all[0].count; ++i) {
    for (uint64_t j = 0; j < all[1].count; ++j) {
      const std::byte* from = slot.data() + offset + i * all[0].stride + j * all[1].stride;
      for (uint64_t k = 0; k < all[2].count; ++k) {
        std::memcpy(out, from + k * all[2].stride, run_bytes);
        out += run_bytes;
      }
    }
  }
}

}  // namespace titan::weightstore::lanes
