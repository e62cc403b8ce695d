// SPDX-License-Identifier: Apache-2.0
#include "weightstore/reshard/plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "weightstore/reshard/boxes.h"

namespace titan::weightstore::reshard {
namespace {

// Everybody of the source who holds the same box of a tensor.
struct Holder {
  uint32_t participant = 0;
  GridFragment fragment;
};
using Holders = std::map<Box, std::vector<Holder>>;

StatusOr<GridFragment> OnGrid(const Placement& placement, size_t participant,
                              const Fragment& fragment) {
  GridFragment on_grid;
  TITAN_RETURN_IF_ERROR(PlaceOnGrid(placement.tensors[fragment.tensor], fragment,
                                    placement.participants[participant].slot_bytes, "a fragment",
                                    &on_grid));
  return on_grid;
}

StatusOr<std::vector<Holders>> HoldersByTensor(const Placement& source) {
  std::vector<Holders> holders(source.tensors.size());
  for (size_t p = 0; p < source.participants.size(); ++p) {
    for (const Fragment& fragment : source.participants[p].fragments) {
      TITAN_ASSIGN_OR_RETURN(GridFragment on_grid, OnGrid(source, p, fragment));
      if (on_grid.box.empty()) continue;
      const Box box = on_grid.box;
      holders[fragment.tensor][box].push_back({static_cast<uint32_t>(p), std::move(on_grid)});
    }
  }
  return holders;
}

uint64_t OffsetOf(const GridFragment& fragment, const Box& box) {
  uint64_t offset = fragment.slot_offset;
  for (size_t d = 0; d < box.begin.size(); ++d) {
    offset += static_cast<uint64_t>(box.begin[d] - fragment.box.begin[d]) * fragment.strides[d];
  }
  return offset;
}

Region RegionOf(const Holder& holder, const GridFragment& destination, const Box& box,
                uint64_t unit_bytes) {
  Region region;
  region.source = holder.participant;
  region.source_offset = OffsetOf(holder.fragment, box);
  region.destination_offset = OffsetOf(destination, box);
  region.run_bytes = unit_bytes;
  std::vector<Loop> loops;  // innermost first
  for (size_t d = 0; d < box.shape.size(); ++d) {
    if (box.shape[d] > 1) {
      loops.push_back({static_cast<uint64_t>(box.shape[d]), holder.fragment.strides[d],
                       destination.strides[d]});
    }
  }
  std::stable_sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) {
    return std::pair(a.destination_stride, a.source_stride) <
           std::pair(b.destination_stride, b.source_stride);
  });
  std::vector<Loop> merged;
  for (const Loop& loop : loops) {
    if (merged.empty() && loop.source_stride == region.run_bytes &&
        loop.destination_stride == region.run_bytes) {
      region.run_bytes *= loop.count;
    } else if (!merged.empty() &&
               loop.source_stride == merged.back().source_stride * merged.back().count &&
               loop.destination_stride == merged.back().destination_stride * merged.back().count) {
      merged.back().count *= loop.count;
    } else {
      merged.push_back(loop);
    }
  }
  region.loops.assign(merged.rbegin(), merged.rend());
  return region;
}

// Neighbours on both sides become one. `regions` are ascending by source and destination offset.
std::vector<Region> MergeRuns(std::vector<Region> regions) {
  std::vector<Region> merged;
  for (Region& region : regions) {
    if (!merged.empty() && region.loops.empty() && merged.back().loops.empty() &&
        region.source == merged.back().source &&
        merged.back().source_offset + merged.back().run_bytes == region.source_offset &&
        merged.back().destination_offset + merged.back().run_bytes == region.destination_offset) {
      merged.back().run_bytes += region.run_bytes;
    } else {
      merged.push_back(std::move(region));
    }
  }
  return merged;
}

class Planner {
 public:
  Planner(const Placement& source, const Placement& destination, const CostModel& costs,
          std::vector<Holders> holders)
      : source_(source),
        destination_(destination),
        costs_(costs),
        holders_(std::move(holders)),
        bytes_of_(source.participants.size()) {
    for (size_t t = 0; t < source.tensors.size(); ++t) index_[source.tensors[t].name] = t;
  }

  StatusOr<Plan> Run() {
    Plan plan;
    plan.source_digest = DigestOf(source_);
    plan.destination_digest = DigestOf(destination_);
    TITAN_RETURN_IF_ERROR(MatchTensors());
    for (size_t p = 0; p < destination_.participants.size(); ++p) {
      std::vector<Region> regions;
      for (const Fragment& fragment : destination_.participants[p].fragments) {
        TITAN_ASSIGN_OR_RETURN(const GridFragment on_grid, OnGrid(destination_, p, fragment));
        if (!on_grid.box.empty()) {
          TITAN_RETURN_IF_ERROR(Cover(fragment.tensor, on_grid, &regions));
        }
      }
      std::stable_sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) {
        return std::pair(a.source, a.destination_offset) <
               std::pair(b.source, b.destination_offset);
      });
      plan.regions.push_back(MergeRuns(std::move(regions)));
      for (Region& region : plan.regions.back()) Choose(&region, &plan.stats);
    }
    return plan;
  }

 private:
  // The same tensor on both sides.
  Status MatchTensors() {
    for (const TensorSpec& tensor : destination_.tensors) {
      const auto found = index_.find(tensor.name);
      if (found == index_.end()) {
        return InvalidArgument("gap: the source has no tensor '" + tensor.name + "'");
      }
      const TensorSpec& other = source_.tensors[found->second];
      const std::string where = ": tensor '" + tensor.name + "' is ";
      if (tensor.dtype != other.dtype) {
        return InvalidArgument("dtype" + where + std::string(NameOf(other.dtype)) +
                               " in the source and " + std::string(NameOf(tensor.dtype)) +
                               " in the destination");
      }
      if (tensor.shape != other.shape) {
        return InvalidArgument("shape" + where + TextOf(other.shape) + " in the source and " +
                               TextOf(tensor.shape) + " in the destination");
      }
      if (tensor.layout != other.layout) {
        return InvalidArgument("layout" + where + std::string(NameOf(other.layout)) +
                               " in the source and " + std::string(NameOf(tensor.layout)) +
                               " in the destination");
      }
      source_tensor_.push_back(found->second);
    }
    return OkStatus();
  }

  static std::string TextOf(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (const int64_t extent : shape) {
      text += (text.size() == 1 ? "" : ", ") + std::to_string(extent);
    }
    return text + "]";
  }

  // Fills one fragment of the destination.
  Status Cover(uint32_t tensor, const GridFragment& wanted, std::vector<Region>* regions) {
    const uint64_t unit_bytes = GridOf(destination_.tensors[tensor]).unit_bytes;
    std::vector<Box> missing = {wanted.box};
    for (const auto& [box, holders] : holders_[source_tensor_[tensor]]) {
      if (missing.empty()) break;
      if (box.begin[0] >= wanted.box.end(0)) break;  // the map is ascending by begin[0]
      std::vector<Box> rest;
      for (const Box& part : missing) {
        const Box both = Intersect(part, box);
        if (!both.empty()) {
          const Holder& holder = LeastRead(holders);
          regions->push_back(RegionOf(holder, wanted, both, unit_bytes));
          bytes_of_[holder.participant] += regions->back().num_bytes();
        }
        Subtract(part, box, &rest);
      }
      missing = std::move(rest);
    }
    if (missing.empty()) return OkStatus();
    return InvalidArgument("gap: tensor '" + destination_.tensors[tensor].name +
                           "': no source holds " +
                           ToText(*std::min_element(missing.begin(), missing.end())));
  }

  const Holder& LeastRead(const std::vector<Holder>& holders) const {
    return *std::min_element(holders.begin(), holders.end(), [&](const auto& a, const auto& b) {
      return bytes_of_[a.participant] < bytes_of_[b.participant];
    });
  }

  void Choose(Region* region, PlanStats* stats) const {
    const bool contiguous = region->destination_range_bytes() == region->num_bytes();
    const Choice choice = Cheapest(costs_, {.num_runs = region->num_runs(),
                                            .run_bytes = region->run_bytes,
                                            .range_bytes = region->range_bytes(),
                                            .destination_contiguous = contiguous});
    region->method = choice.method;
    ++stats->num_regions;
    stats->num_bytes += region->num_bytes();
    stats->read_bytes +=
        choice.method == Method::kOverRead ? region->range_bytes() : region->num_bytes();
    if (__builtin_add_overflow(stats->cost_ps, choice.cost_ps, &stats->cost_ps)) {
      stats->cost_ps = ~uint64_t{0};
    }
    switch (choice.method) {
      case Method::kDirect:
        ++stats->direct_regions;
        break;
      case Method::kOverRead:
        ++stats->over_read_regions;
        break;
      case Method::kPack:
        ++stats->pack_regions;
        break;
    }
  }

  const Placement& source_;
  const Placement& destination_;
  const CostModel& costs_;
  std::map<std::string_view, size_t> index_;  // of the source's tensors
  std::vector<size_t> source_tensor_;         // of each tensor of the destination
  std::vector<Holders> holders_;              // of each tensor of the source
  std::vector<uint64_t> bytes_of_;            // read from each participant of the source
};

}  // namespace

uint64_t Region::num_runs() const {
  uint64_t runs = 1;
  for (const Loop& loop : loops) runs *= loop.count;
  return runs;
}

uint64_t Region::range_bytes() const {
  uint64_t bytes = run_bytes;
  for (const Loop& loop : loops) bytes += (loop.count - 1) * loop.source_stride;
  return bytes;
}

uint64_t Region::destination_range_bytes() const {
  uint64_t bytes = run_bytes;
  for (const Loop& loop : loops) bytes += (loop.count - 1) * loop.destination_stride;
  return bytes;
}

StatusOr<Plan> MakePlan(const Placement& source, const Placement& destination,
                        const CostModel& costs) {
  if (const Status status = Validate(source); !status.ok()) return Annotate(status, "source");
  if (const Status status = Validate(destination); !status.ok()) {
    return Annotate(status, "destination");
  }
  if (costs.max_read_bytes == 0) {
    return InvalidArgument("costs.max_read_bytes: must be at least 1");
  }
  TITAN_ASSIGN_OR_RETURN(std::vector<Holders> holders, HoldersByTensor(source));
  return Planner(source, destination, costs, std::move(holders)).Run();
}

}  // namespace titan::weightstore::reshard
