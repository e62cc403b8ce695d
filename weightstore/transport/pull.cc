// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/pull.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weightstore/reshard/copy.h"

namespace titan::weightstore::lanes {
namespace {

using reshard::Loop;
using reshard::Method;
using reshard::Region;

// Runs [first, first + count) of the outermost loop.
Region PartOf(const Region& region, uint64_t first, uint64_t count) {
  Region part = region;
  const Loop& outer = region.loops.front();
  part.source_offset += first * outer.source_stride;
  part.destination_offset += first * outer.destination_stride;
  if (count == 1) {
    part.loops.erase(part.loops.begin());
  } else {
    part.loops.front().count = count;
  }
  return part;
}

// The regions of one source, as pieces of a few reads.
class SourcePull {
 public:
  SourcePull(RemoteSlot& slot, std::span<std::byte> destination, SteadyTime deadline,
             const PullOptions& options)
      : slot_(slot), destination_(destination), deadline_(deadline), options_(options) {}

  Status Run(const std::vector<const Region*>& regions) {
    if (!slot_.mapped().empty()) {  // copied where they lie
      for (const Region* region : regions) {
        TITAN_RETURN_IF_ERROR(reshard::CopyRegion(*region, slot_.mapped(), 0, destination_));
      }
      return slot_.Confirm(deadline_);
    }
    for (const Region* region : regions) TITAN_RETURN_IF_ERROR(Add(*region));
    return Flush();
  }

 private:
  // Where the bytes of a piece go that do not arrive in their place.
  struct Placing {
    Region region;
    size_t scratch_offset = 0;
    size_t num_bytes = 0;
  };

  Status Add(const Region& region) {
    if (region.run_bytes == 0) return InvalidArgument("bounds: a region of empty runs");
    if (region.loops.empty()) return AddRun(region);
    const bool packs = region.method == Method::kPack && slot_.can_pack();
    const bool over_reads = region.method == Method::kOverRead;
    const uint64_t limit =
        packs ? std::min(kMaxPackedBytes, options_.scratch_bytes) : options_.scratch_bytes;
    const uint64_t size = packs ? region.num_bytes() : region.range_bytes();
    if ((packs && size <= limit && region.loops.size() <= kMaxPackLoops) ||
        (over_reads && size <= limit)) {
      return packs ? AddPacked(region) : AddRange(region);
    }
    // Cut along the outermost loop into parts that fit, or runs that are read one by one.
    const Loop& outer = region.loops.front();
    const Region inner = PartOf(region, 0, 1);
    uint64_t step = 1;
    if (packs && region.loops.size() <= kMaxPackLoops) {
      step = std::max<uint64_t>(1, limit / inner.num_bytes());
    } else if (over_reads && inner.range_bytes() <= limit && outer.source_stride > 0) {
      step = 1 + (limit - inner.range_bytes()) / outer.source_stride;
    }
    for (uint64_t first = 0; first < outer.count; first += step) {
      TITAN_RETURN_IF_ERROR(Add(PartOf(region, first, std::min(step, outer.count - first))));
    }
    return OkStatus();
  }

  Status AddRun(const Region& run) {
    if (run.destination_offset > destination_.size() ||
        run.run_bytes > destination_.size() - run.destination_offset) {
      return InvalidArgument("bounds: a region does not lie within the destination");
    }
    pieces_.push_back({.source_offset = run.source_offset,
                       .destination = destination_.subspan(run.destination_offset, run.run_bytes)});
    return pieces_.size() >= options_.max_pieces ? Flush() : OkStatus();
  }

  Status AddRange(const Region& region) {
    Piece piece{.source_offset = region.source_offset};
    return AddPlaced(region, std::move(piece), region.range_bytes());
  }

  Status AddPacked(const Region& region) {
    Piece piece{.source_offset = region.source_offset, .run_bytes = region.run_bytes};
    for (const Loop& loop : region.loops) piece.loops.push_back({loop.count, loop.source_stride});
    const bool in_place = region.destination_range_bytes() == region.num_bytes() &&
                          region.destination_offset <= destination_.size() &&
                          region.num_bytes() <= destination_.size() - region.destination_offset;
    if (!in_place) return AddPlaced(region, std::move(piece), region.num_bytes());
    piece.destination = destination_.subspan(region.destination_offset, region.num_bytes());
    pieces_.push_back(std::move(piece));
    return pieces_.size() >= options_.max_pieces ? Flush() : OkStatus();
  }

  Status AddPlaced(const Region& region, Piece piece, uint64_t num_bytes) {
    if (scratch_.empty()) scratch_.resize(options_.scratch_bytes);
    if (scratch_.size() - scratch_used_ < num_bytes) TITAN_RETURN_IF_ERROR(Flush());
    piece.destination = std::span(scratch_).subspan(scratch_used_, num_bytes);
    placings_.push_back({region, scratch_used_, num_bytes});
    scratch_used_ += num_bytes;
    pieces_.push_back(std::move(piece));
    return pieces_.size() >= options_.max_pieces ? Flush() : OkStatus();
  }

  Status Flush() {
    if (pieces_.empty()) return OkStatus();
    TITAN_RETURN_IF_ERROR(slot_.Read(pieces_, deadline_));
    for (const Placing& placing : placings_) {
      const auto bytes =
          std::span<const std::byte>(scratch_).subspan(placing.scratch_offset, placing.num_bytes);
      TITAN_RETURN_IF_ERROR(placing.region.method == Method::kPack
                                ? reshard::PlaceRuns(placing.region, 0, placing.region.num_runs(),
                                                     bytes, destination_)
                                : reshard::CopyRegion(placing.region, bytes,
                                                      placing.region.source_offset, destination_));
    }
    pieces_.clear();
    placings_.clear();
    scratch_used_ = 0;
    return OkStatus();
  }

  RemoteSlot& slot_;
  const std::span<std::byte> destination_;
  const SteadyTime deadline_;
  const PullOptions& options_;
  std::vector<Piece> pieces_;
  std::vector<Placing> placings_;
  std::vector<std::byte> scratch_;
  size_t scratch_used_ = 0;
};

}  // namespace

Status PullRegions(std::span<const Region> regions, std::span<RemoteSlot* const> sources,
                   std::span<std::byte> destination, SteadyTime deadline,
                   const PullOptions& options) {
  if (options.parallel_sources < 1 || options.scratch_bytes < 1 || options.max_pieces < 1) {
    return InvalidArgument("pull: parallel_sources, scratch_bytes, max_pieces: must be at least 1");
  }
  std::map<uint32_t, std::vector<const Region*>> by_source;
  for (const Region& region : regions) {
    if (region.source >= sources.size() || sources[region.source] == nullptr) {
      return InvalidArgument("pull: the plan reads source " + std::to_string(region.source) +
                             ", which is not open");
    }
    by_source[region.source].push_back(&region);
  }
  const std::vector<std::pair<uint32_t, std::vector<const Region*>>> work(by_source.begin(),
                                                                          by_source.end());
  std::vector<Status> results(work.size(), OkStatus());
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto pull = [&] {
    for (size_t i; !failed && (i = next.fetch_add(1)) < work.size();) {
      const auto& [source, its] = work[i];
      const Status status = SourcePull(*sources[source], destination, deadline, options).Run(its);
      if (!status.ok()) {
        results[i] = Annotate(status, "source " + std::to_string(source));
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t helpers =
        std::min(static_cast<size_t>(options.parallel_sources), std::max<size_t>(work.size(), 1)) -
        1;
    for (size_t i = 0; i < helpers; ++i) threads.emplace_back(pull);
    pull();
  }
  for (const Status& status : results) TITAN_RETURN_IF_ERROR(status);
  return OkStatus();
}

}  // namespace titan::weightstore::lanes
