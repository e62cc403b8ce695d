// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/blocking.h"

#include "core/base/check.h"

namespace titan::kernels::internal {
namespace {

// Measured on a Zen 4 with 1 MiB of second-level cache a core (bench/kernels/blocking_sweep.cc).
// Around these values the speed is flat within 1 %, but for whole_chain: with AVX2 chains of 8192
// steps in one go cost 44 %; with AVX-512, whose tile is fetched ahead, 4096 instead of 2048 steps
// gain 4 to 8 %, and beyond that a block's rows would be too few to share a panel.
constexpr Blocking kMeasuredAvx2 = {.row_block_floats = 128 * 1024,
                                    .whole_chain = 2048,
                                    .chain_part = 1024,
                                    .long_chain_rows = 196};
constexpr Blocking kMeasuredAvx512 = {.row_block_floats = 128 * 1024,
                                      .whole_chain = 4096,
                                      .chain_part = 1024,
                                      .long_chain_rows = 196};

Blocking& Of(Isa isa) {
  static Blocking avx2 = kMeasuredAvx2, avx512 = kMeasuredAvx512;
  return isa == Isa::kAvx512 ? avx512 : avx2;
}

}  // namespace

const Blocking& CurrentBlocking() { return Of(CurrentIsa()); }

void SetBlocking(Isa isa, const Blocking& blocking) {
  TITAN_CHECK(blocking.row_block_floats > 0 && blocking.whole_chain > 0 &&
              blocking.long_chain_rows > 0);
  TITAN_CHECK(blocking.chain_part > 0 && blocking.chain_part % 2 == 0);
  Of(isa) = blocking;
}

}  // namespace titan::kernels::internal
