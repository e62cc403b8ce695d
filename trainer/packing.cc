// SPDX-License-Identifier: Apache-2.0
#include "trainer/packing.h"

#include <string>

#include "core/base/check.h"

namespace titan::trainer {

StatusOr<std::vector<Pack>> PackShard(std::span<const int64_t> sample_lengths, int64_t max_rows) {
  std::vector<Pack> packs;
  if (sample_lengths.empty()) return packs;
  Pack open;             // complete stretches that lie in the pack being filled
  Pack stretch;          // units since the last place where a pack may end
  int64_t pack_row = 0;  // first row of the open pack
  size_t sample = 0;     // first sample not yet in a closed stretch
  int64_t sample_end = 0;
  for (const kernels::Unit& unit : kernels::ScanUnits(sample_lengths)) {
    stretch.units.push_back({unit.first_row, unit.first_row + unit.num_rows});
    stretch.num_rows += unit.num_rows;
    if (!unit.ends_sample) continue;
    const int64_t end = unit.first_row + unit.num_rows;
    while (sample_end < end) {
      sample_end += sample_lengths[sample++];
      ++stretch.num_samples;
    }
    TITAN_CHECK(sample_end == end);
    if (stretch.num_rows > max_rows) {
      return ResourceExhausted("a stretch of " + std::to_string(stretch.num_rows) +
                               " tokens may not be cut (units end at samples' ends) and exceeds "
                               "max_pack_tokens = " +
                               std::to_string(max_rows) +
                               "; raise max_pack_tokens or lower max_sequence_tokens");
    }
    if (open.num_rows + stretch.num_rows > max_rows) {
      pack_row += open.num_rows;
      const int64_t next_sample = open.first_sample + open.num_samples;
      packs.push_back(std::move(open));
      open = Pack{};
      open.first_sample = next_sample;
    }
    for (const kernels::RowRange& range : stretch.units) {
      open.units.push_back({range.begin - pack_row, range.end - pack_row});
    }
    open.num_rows += stretch.num_rows;
    open.num_samples += stretch.num_samples;
    stretch = Pack{};
  }
  if (open.num_samples > 0) packs.push_back(std::move(open));
  return packs;
}

}  // namespace titan::trainer
