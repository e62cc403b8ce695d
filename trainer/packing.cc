// SPDX-License-Identifier: Apache-2.0
#include "trainer/packing.h"

#include <string>

#include "core/base/check.h"

namespace titan::trainer {

std::vector<PackItem> ItemsOf(std::span<const TrainingSample* const> samples,
                              int64_t max_shared_rows) {
  std::vector<PackItem> items;
  for (size_t first = 0; first < samples.size();) {
    size_t end = first + 1;
    while (end < samples.size() && samples[end]->group == samples[first]->group) ++end;
    const auto group = samples.subspan(first, end - first);
    const std::vector<TokenId>& prompt = group.front()->prompt;
    int64_t shared_rows = static_cast<int64_t>(prompt.size());
    bool one_prompt = true;
    for (const TrainingSample* sample : group) {
      one_prompt = one_prompt && sample->prompt == prompt;
      shared_rows += static_cast<int64_t>(sample->reply.size());
    }
    const auto at = static_cast<int64_t>(first);
    if (group.size() >= 2 && one_prompt && shared_rows <= max_shared_rows) {
      items.push_back({at, static_cast<int64_t>(group.size()), shared_rows, true});
    } else {
      for (size_t i = 0; i < group.size(); ++i) {
        items.push_back({at + static_cast<int64_t>(i), 1, group[i]->length(), false});
      }
    }
    first = end;
  }
  return items;
}

StatusOr<std::vector<Pack>> PackShard(std::span<const PackItem> items, int64_t max_rows) {
  std::vector<Pack> packs;
  if (items.empty()) return packs;
  std::vector<int64_t> item_rows;
  for (const PackItem& item : items) item_rows.push_back(item.num_rows);
  Pack open;             // complete stretches that lie in the pack being filled
  Pack stretch;          // units since the last place where a pack may end
  int64_t pack_row = 0;  // first row of the open pack
  size_t item = 0;       // first item not yet in a closed stretch
  int64_t item_end = 0;
  for (const kernels::Unit& unit : kernels::ScanUnits(item_rows)) {
    stretch.units.push_back({unit.first_row, unit.first_row + unit.num_rows});
    stretch.num_rows += unit.num_rows;
    if (!unit.ends_sample) continue;
    const int64_t end = unit.first_row + unit.num_rows;
    while (item_end < end) {
      item_end += item_rows[item++];
      ++stretch.num_items;
    }
    TITAN_CHECK(item_end == end);
    if (stretch.num_rows > max_rows) {
      return ResourceExhausted("a stretch of " + std::to_string(stretch.num_rows) +
                               " tokens may not be cut (units end at the ends of samples and of "
                               "groups that share a prompt) and exceeds "
                               "max_pack_tokens = " +
                               std::to_string(max_rows) +
                               "; raise max_pack_tokens or lower max_sequence_tokens and "
                               "training.shared_group_tokens");
    }
    if (open.num_rows + stretch.num_rows > max_rows) {
      pack_row += open.num_rows;
      const int64_t next_item = open.first_item + open.num_items;
      packs.push_back(std::move(open));
      open = Pack{};
      open.first_item = next_item;
    }
    for (const kernels::RowRange& range : stretch.units) {
      open.units.push_back({range.begin - pack_row, range.end - pack_row});
    }
    open.num_rows += stretch.num_rows;
    open.num_items += stretch.num_items;
    stretch = Pack{};
  }
  if (open.num_items > 0) packs.push_back(std::move(open));
  return packs;
}

}  // namespace titan::trainer
