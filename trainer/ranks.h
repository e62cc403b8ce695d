// SPDX-License-Identifier: Apache-2.0
//
// The trainer ranks of one update, and how they share the shards of its gradient (numerics.md
// section 7): each owns contiguous shards and sends one partial sum for each maximal subtree of the
// shard tree, so the sums are those of one rank, whatever the number of ranks.
#ifndef TITAN_TRAINER_RANKS_H_
#define TITAN_TRAINER_RANKS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace titan::trainer {

// The caller's way between ranks. Every rank makes the same calls in the same order, from one
// thread. A rank that cannot go on makes the others' calls fail; no call waits without end.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The bytes of `root` to everyone; data has one size everywhere. Moves bytes, adds nothing.
  virtual Status Broadcast(int root, std::span<std::byte> data) = 0;
};

// Shards [first, first + size): size is a power of two and divides first.
struct Subtree {
  int first = 0;
  int size = 0;

  bool operator==(const Subtree&) const = default;
};

// The maximal subtrees of the shards that `rank` owns, floor(rank * num_shards / num_ranks) up to
// the next rank's first, ascending. REQUIRES: num_shards a power of two, at least num_ranks.
std::vector<Subtree> SubtreesOf(int num_shards, int num_ranks, int rank);

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_RANKS_H_
