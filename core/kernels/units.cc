// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/units.h"

#include <bit>

#include "core/base/check.h"
#include "core/kernels/order.h"

namespace titan::kernels {

std::vector<Unit> ScanUnits(std::span<const int64_t> sample_lengths) {
  std::vector<Unit> units;
  int64_t row = 0, first = 0;
  const auto close = [&](bool ends_sample) {
    units.push_back({first, row - first, ends_sample});
    first = row;
  };
  for (const int64_t length : sample_lengths) {
    TITAN_CHECK(length >= 1);
    for (int64_t left = length; left > 0;) {
      const int64_t step = left < kUnitTokens ? left : kUnitTokens;
      row += step;
      left -= step;
      if (left > 0) close(false);
    }
    if (row > first && (row - first >= kUnitTokens || length > kUnitTokens)) close(true);
  }
  if (row > first) close(true);
  return units;
}

int ShardOfGroup(int64_t group, int64_t num_groups, int num_shards) {
  TITAN_CHECK(group >= 0 && group < num_groups && num_groups < (int64_t{1} << 32));
  TITAN_CHECK(num_shards >= 1 && std::has_single_bit(static_cast<unsigned>(num_shards)));
  return static_cast<int>(group * num_shards / num_groups);
}

int MergesAfterShard(int index) {
  TITAN_CHECK(index >= 0);
  return std::countr_one(static_cast<unsigned>(index));
}

}  // namespace titan::kernels
