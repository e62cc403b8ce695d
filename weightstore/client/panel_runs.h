// SPDX-License-Identifier: Apache-2.0
//
// xxh3-128 of the same run of a panel's 32 rows at once. In a panel the words of the rows lie side
// by side, so each lane of a vector hashes a row of its own and nothing is gathered first: as fast
// as the panel is read. Pure functions, any thread.
#ifndef TITAN_WEIGHTSTORE_CLIENT_PANEL_RUNS_H_
#define TITAN_WEIGHTSTORE_CLIENT_PANEL_RUNS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/hash.h"

namespace titan::weightstore {

inline constexpr int64_t kPanelRows = 32;
// Shorter messages are hashed by another rule of xxh3.
inline constexpr int64_t kMinPanelRunWords = 58;

// What xxh3 derives from a seed.
class PanelSecret {
 public:
  explicit PanelSecret(uint64_t seed);
  const std::byte* bytes() const { return bytes_.data(); }

 private:
  alignas(64) std::array<std::byte, 192> bytes_;
};

// Of row r what is hashed is: first_index + r * index_step as u64, count as u32, then its words.
struct PanelRuns {
  const std::byte* words = nullptr;  // [num_words][32] of 4 bytes
  int64_t num_words = 0;
  bool swap_halves = false;  // the halves of each word change places first
  uint64_t first_index = 0;
  uint64_t index_step = 0;
  uint32_t count = 0;
};

// The vectors that HashPanelRuns uses; kNone: this processor has none of them.
enum class PanelVectors : uint8_t { kNone, kAvx2, kAvx512 };
PanelVectors BestPanelVectors();

// REQUIRES: runs.num_words >= kMinPanelRunWords; vectors is not kNone and at most
// BestPanelVectors().
void HashPanelRuns(const PanelRuns& runs, const PanelSecret& secret, PanelVectors vectors,
                   std::span<Hash128, kPanelRows> hashes);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_PANEL_RUNS_H_
