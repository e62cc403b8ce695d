// SPDX-License-Identifier: Apache-2.0
//
// Internal to core/kernels: how linear.cc cuts its work, a row of numbers for each instruction set.
// They decide speed only, never a bit: a chain may be interrupted anywhere and goes on from memory.
// The tile's height is not among them: it is what the registers hold (WeightTile), and m rows are
// cut into as few tiles as the threads' blocks allow, as even as possible (RowTiles).
#ifndef TITAN_CORE_KERNELS_BLOCKING_H_
#define TITAN_CORE_KERNELS_BLOCKING_H_

#include <cstdint>

#include "core/kernels/isa.h"

namespace titan::kernels::internal {

struct Blocking {
  // Packed rows of one block, which a task multiplies with panel after panel: about half of a
  // second-level cache of 1 MiB, a panel streams through the rest.
  int64_t row_block_floats;
  // Chains of packed rows up to this long (steps, or pairs of bfloat16 steps) run in one go; their
  // panel has at most 128 bytes for each.
  int64_t whole_chain;
  // Steps of the parts of longer ones, even, and the rows of a block of them, whose accumulators
  // are parked in memory.
  int64_t chain_part;
  int64_t long_chain_rows;

  bool operator==(const Blocking&) const = default;
};

// Of the instruction set in use.
const Blocking& CurrentBlocking();

// For measurements (bench/kernels/blocking_sweep.cc): replaces the row of an instruction set while
// no kernel runs. REQUIRES: positive numbers, chain_part even.
void SetBlocking(Isa isa, const Blocking& blocking);

}  // namespace titan::kernels::internal

#endif  // TITAN_CORE_KERNELS_BLOCKING_H_
