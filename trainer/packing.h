// SPDX-License-Identifier: Apache-2.0
//
// Packs: the microbatches of a shard. A shard is scanned item by item; an item is one sample, or a
// group that shares its prompt: the replies in sample order, then the prompt once (numerics.md
// section 7). A pack is whole items laid end to end; it ends only where a unit was closed at an
// item's end, so how a shard is cut into packs changes no bit of a gradient. Pure functions, any
// thread.
#ifndef TITAN_TRAINER_PACKING_H_
#define TITAN_TRAINER_PACKING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/units.h"
#include "trainer/training_sample.h"

namespace titan::trainer {

// Samples [first_sample, first_sample + num_samples) of a list.
struct PackItem {
  int64_t first_sample = 0;
  int64_t num_samples = 1;
  int64_t num_rows = 0;
  bool shares_prompt = false;

  bool operator==(const PackItem&) const = default;
};

// The items of samples in plan order. Consecutive samples of one group share their prompt when they
// are at least two, have one prompt, token for token, and take at most max_shared_rows rows that
// way (0: none do).
std::vector<PackItem> ItemsOf(std::span<const TrainingSample* const> samples,
                              int64_t max_shared_rows);

struct Pack {
  int64_t first_item = 0;
  int64_t num_items = 0;
  int64_t num_rows = 0;
  std::vector<kernels::RowRange> units;  // of this pack's rows, from 0
};

// Items of one shard, in order, into packs of at most max_rows rows each, as few as greedy filling
// gives. ResourceExhausted: a stretch that may not be cut has more rows than max_rows (names both).
// REQUIRES: every item has rows.
StatusOr<std::vector<Pack>> PackShard(std::span<const PackItem> items, int64_t max_rows);

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_PACKING_H_
