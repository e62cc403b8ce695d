// SPDX-License-Identifier: Apache-2.0
#include "weightstore/reshard/fragment_digest.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "weightstore/client/weights_digest.h"
#include "weightstore/reshard/boxes.h"

namespace titan::weightstore::reshard {
namespace {

// The columns of a fragment are whole runs.
Status CheckColumns(const TensorSpec& tensor, const Fragment& fragment) {
  const size_t last = tensor.shape.size() - 1;
  const int64_t begin = fragment.begin[last], end = begin + fragment.shape[last];
  const bool whole = begin == 0 && end == tensor.shape[last];
  if (tensor.layout != Layout::kRows && !whole) {
    return InvalidArgument("tensor '" + tensor.name + "': digests of packed columns " +
                           std::to_string(begin) + " to " + std::to_string(end) +
                           " need whole rows; cut along the rows, or digest after assembling");
  }
  if (begin % kDigestRun != 0 || (end % kDigestRun != 0 && end != tensor.shape[last])) {
    return InvalidArgument("tensor '" + tensor.name + "': columns " + std::to_string(begin) +
                           " to " + std::to_string(end) +
                           " cut a run of 256 elements of the weights digest; cut at multiples of "
                           "256, or digest after assembling");
  }
  return OkStatus();
}

// Rows of any number of dimensions: each run is hashed where it lies in the whole tensor.
Hash128 RowsPart(const TensorSpec& tensor, const GridFragment& fragment, const std::byte* slot) {
  const size_t rank = fragment.box.shape.size();
  const std::vector<int64_t> whole = GridOf(tensor).shape;
  const auto element_bytes = static_cast<size_t>(ElementBytes(tensor.dtype));
  const uint64_t seed = Hash64(tensor.name);
  std::vector<std::byte> run(sizeof(uint64_t) + sizeof(uint32_t) + kDigestRun * element_bytes);
  std::vector<int64_t> index(rank, 0);  // within the fragment; the last one is the column
  Hash128 sum;
  for (;;) {
    uint64_t at = 0;
    uint64_t offset = fragment.slot_offset;
    for (size_t d = 0; d < rank; ++d) {
      at = at * static_cast<uint64_t>(whole[d]) +
           static_cast<uint64_t>(fragment.box.begin[d] + index[d]);
      offset += static_cast<uint64_t>(index[d]) * fragment.strides[d];
    }
    const auto count =
        static_cast<uint32_t>(std::min(kDigestRun, fragment.box.shape[rank - 1] - index[rank - 1]));
    std::byte* out = run.data();
    std::memcpy(out, &at, sizeof(at));
    std::memcpy(out + sizeof(at), &count, sizeof(count));
    out += sizeof(at) + sizeof(count);
    const uint64_t stride = fragment.strides[rank - 1];
    for (uint32_t i = 0; i < count; ++i) {
      std::memcpy(out + i * element_bytes, slot + offset + i * stride, element_bytes);
    }
    sum += Hash128Of(run.data(), sizeof(at) + sizeof(count) + count * element_bytes, seed);
    index[rank - 1] += count;
    for (size_t d = rank; d-- > 0 && index[d] == fragment.box.shape[d];) {
      if (d == 0) return sum;
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

}  // namespace

StatusOr<Hash128> FragmentDigest(const TensorSpec& tensor, const Fragment& fragment,
                                 std::span<const std::byte> slot) {
  TITAN_RETURN_IF_ERROR(CheckTensor(tensor));
  GridFragment on_grid;
  TITAN_RETURN_IF_ERROR(
      PlaceOnGrid(tensor, fragment, slot.size(), "tensor '" + tensor.name + "'", &on_grid));
  if (on_grid.box.empty()) return Hash128{};
  if (!tensor.shape.empty()) TITAN_RETURN_IF_ERROR(CheckColumns(tensor, fragment));
  if (tensor.layout == Layout::kRows) return RowsPart(tensor, on_grid, slot.data());
  TensorEntry entry;
  entry.name = tensor.name;
  entry.shape = tensor.shape;
  entry.dtype = tensor.dtype;
  entry.layout = tensor.layout;
  const uint64_t panel_bytes = on_grid.strides[0];
  // TensorRowsDigest counts from the whole tensor's first byte, and reads the rows it is asked for.
  const auto first_panel = static_cast<uint64_t>(on_grid.box.begin[0]);
  const auto base =
      reinterpret_cast<uintptr_t>(slot.data()) + on_grid.slot_offset - first_panel * panel_bytes;
  return TensorRowsDigest(entry, reinterpret_cast<const std::byte*>(base), fragment.begin[0],
                          fragment.begin[0] + fragment.shape[0]);
}

StatusOr<std::vector<std::vector<bool>>> DigestShares(const Placement& placement) {
  TITAN_RETURN_IF_ERROR(Validate(placement));
  TITAN_RETURN_IF_ERROR(CheckCovers(placement));
  std::vector<std::set<Box>> seen(placement.tensors.size());
  std::vector<std::vector<bool>> shares;
  for (const Participant& participant : placement.participants) {
    std::vector<bool> counts;
    for (const Fragment& fragment : participant.fragments) {
      GridFragment on_grid;
      TITAN_RETURN_IF_ERROR(PlaceOnGrid(placement.tensors[fragment.tensor], fragment,
                                        participant.slot_bytes, "a fragment", &on_grid));
      std::set<Box>& boxes = seen[fragment.tensor];
      const bool counts_here = !on_grid.box.empty() && !boxes.contains(on_grid.box);
      if (counts_here) {
        for (const Box& other : boxes) {
          const Box both = Intersect(on_grid.box, other);
          if (!both.empty()) {
            return InvalidArgument("overlap: tensor '" + placement.tensors[fragment.tensor].name +
                                   "': " + ToText(on_grid.box) + " and " + ToText(other) +
                                   " meet and are not equal; their digests cannot be added");
          }
        }
        boxes.insert(on_grid.box);
      }
      counts.push_back(counts_here);
    }
    shares.push_back(std::move(counts));
  }
  return shares;
}

}  // namespace titan::weightstore::reshard
