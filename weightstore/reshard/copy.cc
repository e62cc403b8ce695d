// SPDX-License-Identifier: Apache-2.0
#include "weightstore/reshard/copy.h"

#include <cstring>
#include <string>
#include <vector>

namespace titan::weightstore::reshard {
namespace {

// Does a nest of loops stay within `size` bytes? Checked, because regions may come from outside.
bool Within(const Region& region, bool of_source, uint64_t offset, uint64_t size) {
  uint64_t end = offset;
  for (const Loop& loop : region.loops) {
    uint64_t step;
    if (loop.count == 0 ||
        __builtin_mul_overflow(loop.count - 1,
                               of_source ? loop.source_stride : loop.destination_stride, &step) ||
        __builtin_add_overflow(end, step, &end)) {
      return false;
    }
  }
  return !__builtin_add_overflow(end, region.run_bytes, &end) && end <= size;
}

bool NumRuns(const Region& region, uint64_t* runs) {
  *runs = 1;
  for (const Loop& loop : region.loops) {
    if (__builtin_mul_overflow(*runs, loop.count, runs)) return false;
  }
  return true;
}

Status OutOfBounds(const char* what) {
  return InvalidArgument(std::string("bounds: the region does not lie within the ") + what);
}

// Calls see(source offset, destination offset) for num_runs runs from first_run on.
template <typename See>
void EachRun(const Region& region, uint64_t first_run, uint64_t num_runs, See see) {
  const size_t depth = region.loops.size();
  std::vector<uint64_t> index(depth);
  uint64_t source = region.source_offset, destination = region.destination_offset;
  uint64_t rest = first_run;
  for (size_t d = depth; d-- > 0;) {
    const Loop& loop = region.loops[d];
    index[d] = rest % loop.count;
    rest /= loop.count;
    source += index[d] * loop.source_stride;
    destination += index[d] * loop.destination_stride;
  }
  for (uint64_t run = 0; run < num_runs; ++run) {
    see(source, destination);
    for (size_t d = depth; d-- > 0;) {
      const Loop& loop = region.loops[d];
      source += loop.source_stride;
      destination += loop.destination_stride;
      if (++index[d] < loop.count) break;
      source -= loop.count * loop.source_stride;
      destination -= loop.count * loop.destination_stride;
      index[d] = 0;
    }
  }
}

// The size as a constant for short runs, where a call of memcpy would be most of the time.
template <typename Copy>
void WithRunBytes(uint64_t run_bytes, Copy copy) {
  switch (run_bytes) {
    case 2:
      return copy([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 2); });
    case 4:
      return copy([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 4); });
    case 128:
      return copy([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 128); });
    default:
      return copy(
          [run_bytes](std::byte* to, const std::byte* from) { std::memcpy(to, from, run_bytes); });
  }
}

Status CheckRuns(const Region& region, uint64_t first_run, uint64_t num_runs, size_t num_bytes) {
  uint64_t runs, last, bytes;
  if (!NumRuns(region, &runs) || __builtin_add_overflow(first_run, num_runs, &last) ||
      last > runs || __builtin_mul_overflow(num_runs, region.run_bytes, &bytes) ||
      bytes != num_bytes) {
    return OutOfBounds("runs that are gathered or placed");
  }
  return OkStatus();
}

}  // namespace

Status CopyRegion(const Region& region, std::span<const std::byte> source, uint64_t source_base,
                  std::span<std::byte> destination) {
  uint64_t runs;
  if (region.source_offset < source_base ||
      !Within(region, true, region.source_offset - source_base, source.size())) {
    return OutOfBounds("source");
  }
  if (!NumRuns(region, &runs) ||
      !Within(region, false, region.destination_offset, destination.size())) {
    return OutOfBounds("destination");
  }
  WithRunBytes(region.run_bytes, [&](auto copy) {
    EachRun(region, 0, runs, [&](uint64_t from, uint64_t to) {
      copy(destination.data() + to, source.data() + (from - source_base));
    });
  });
  return OkStatus();
}

Status GatherRuns(const Region& region, uint64_t first_run, uint64_t num_runs,
                  std::span<const std::byte> source, std::span<std::byte> out) {
  TITAN_RETURN_IF_ERROR(CheckRuns(region, first_run, num_runs, out.size()));
  if (!Within(region, true, region.source_offset, source.size())) return OutOfBounds("source");
  std::byte* at = out.data();
  WithRunBytes(region.run_bytes, [&](auto copy) {
    EachRun(region, first_run, num_runs, [&](uint64_t from, uint64_t) {
      copy(at, source.data() + from);
      at += region.run_bytes;
    });
  });
  return OkStatus();
}

Status PlaceRuns(const Region& region, uint64_t first_run, uint64_t num_runs,
                 std::span<const std::byte> in, std::span<std::byte> destination) {
  TITAN_RETURN_IF_ERROR(CheckRuns(region, first_run, num_runs, in.size()));
  if (!Within(region, false, region.destination_offset, destination.size())) {
    return OutOfBounds("destination");
  }
  const std::byte* at = in.data();
  WithRunBytes(region.run_bytes, [&](auto copy) {
    EachRun(region, first_run, num_runs, [&](uint64_t, uint64_t to) {
      copy(destination.data() + to, at);
      at += region.run_bytes;
    });
  });
  return OkStatus();
}

}  // namespace titan::weightstore::reshard
