// SPDX-License-Identifier: Apache-2.0
//
// How the tokens of an update are cut into units, shards and a tree (numerics.md section 7).
// Integer functions of the lengths only: neither ranks, threads nor microbatches enter. Any thread.
#ifndef TITAN_CORE_KERNELS_UNITS_H_
#define TITAN_CORE_KERNELS_UNITS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace titan::kernels {

class Pool;

// A unit is rows [first_row, first_row + num_rows) of a shard's tokens laid end to end.
struct Unit {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  // True when the unit was closed at a sample's end or at the shard's end (rules a and c): a
  // microbatch may end after it, nowhere else.
  bool ends_sample = false;

  bool operator==(const Unit&) const = default;
};

// A half-open range of rows; what the backward kernels take, one chain each.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const RowRange&) const = default;
};

// Scans the samples of one shard in order, all tokens counted, and closes a unit (a) after a
// sample's last token if the unit holds >= 1024 tokens or the sample has more than 1024, (b) after
// each 1024th token of a sample counted from its start if more follow, (c) at the shard's end.
// REQUIRES: lengths >= 1. A unit is shorter than 2048 tokens.
std::vector<Unit> ScanUnits(std::span<const int64_t> sample_lengths);

// Shard of trained group `group` of `num_groups` with `num_shards` = Z: floor(group * Z /
// num_groups). REQUIRES: 0 <= group < num_groups, Z a power of two.
int ShardOfGroup(int64_t group, int64_t num_groups, int num_shards);

// Balanced tree: after the buffer of shard `index` (ascending from 0) is complete, this many merges
// "left += right" of the two newest partial sums follow (the trailing ones of index). log2(Z) + 1
// buffers suffice at any time.
int MergesAfterShard(int index);

// left[i] = left[i] + right[i], one node of the tree. Parallel over i; same bits for any pool.
void AddInto(Pool& pool, int64_t n, float* left, const float* right);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_UNITS_H_
