// SPDX-License-Identifier: Apache-2.0
//
// The trainer ranks of one update, and how they share the shards of its gradient (numerics.md
// section 7): each owns contiguous shards and sends one partial sum for each maximal subtree of the
// shard tree, so the sums are those of one rank, whatever the number of ranks.
#ifndef TITAN_TRAINER_RANKS_H_
#define TITAN_TRAINER_RANKS_H_

#include <vector>

#include "core/model/ranks.h"

namespace titan::trainer {

using model::Ranks;

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
