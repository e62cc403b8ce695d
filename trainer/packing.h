// SPDX-License-Identifier: Apache-2.0
//
// Packs: the microbatches of a shard. A pack is whole samples laid end to end; it ends only where a
// unit was closed at a sample's end (numerics.md section 7), so how a shard is cut into packs
// changes no bit of a gradient. Pure functions, any thread.
#ifndef TITAN_TRAINER_PACKING_H_
#define TITAN_TRAINER_PACKING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/units.h"

namespace titan::trainer {

struct Pack {
  int64_t first_sample = 0;
  int64_t num_samples = 0;
  int64_t num_rows = 0;
  std::vector<kernels::RowRange> units;  // of this pack's rows, from 0
};

// Samples of one shard, in order, into packs of at most max_rows rows each, as few as greedy
// filling gives. ResourceExhausted: a stretch that may not be cut has more rows than max_rows
// (names both). REQUIRES: every length >= 1.
StatusOr<std::vector<Pack>> PackShard(std::span<const int64_t> sample_lengths, int64_t max_rows);

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_PACKING_H_
