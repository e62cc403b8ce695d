// SPDX-License-Identifier: Apache-2.0
//
// N-D boxes and their arithmetic, and the grid of a tensor: its smallest unit that is copied as one
// piece. For rows a unit is an element; for the kernels' layouts it is the 32 lanes of one column
// (or pair of columns), so that after this file nobody needs to know about layouts. Pure functions.
// Internal to weightstore/reshard.
#ifndef TITAN_WEIGHTSTORE_RESHARD_BOXES_H_
#define TITAN_WEIGHTSTORE_RESHARD_BOXES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "weightstore/reshard/placement.h"

namespace titan::weightstore::reshard {

inline constexpr uint64_t kMaxBytes = uint64_t{1} << 60;

// Half open in every dimension; as many dimensions as the grid, at least one.
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> shape;

  int64_t end(size_t d) const { return begin[d] + shape[d]; }
  bool empty() const;
  friend auto operator<=>(const Box&, const Box&) = default;
};

// "[0:4, 2:6]"
std::string ToText(const Box& box);

// REQUIRES (here and below): equal numbers of dimensions.
Box Intersect(const Box& a, const Box& b);
// Appends what of `a` is not in `b`, as at most 2 * dimensions disjoint boxes in a fixed order.
void Subtract(const Box& a, const Box& b, std::vector<Box>* out);

// Dimensions and bytes of a unit. REQUIRES: a tensor that CheckTensor accepts.
struct Grid {
  std::vector<int64_t> shape;  // at least one dimension
  uint64_t unit_bytes = 0;
};
Grid GridOf(const TensorSpec& tensor);

// A fragment on the grid of its tensor.
struct GridFragment {
  Box box;
  uint64_t slot_offset = 0;
  std::vector<uint64_t> strides;  // bytes, one for each dimension
  uint64_t end = 0;               // of its last byte in the slot, + 1; slot_offset when empty
};

// "shape" and "overflow" of Validate for the tensor alone.
Status CheckTensor(const TensorSpec& tensor);
// "shape", "overflow" and "bounds", and "overlap" of the fragment with itself. `where` goes into
// messages. REQUIRES: CheckTensor accepted the tensor.
Status PlaceOnGrid(const TensorSpec& tensor, const Fragment& fragment, uint64_t slot_bytes,
                   const std::string& where, GridFragment* out);

// Do two fragments share a byte? InvalidArgument "overlap": cannot be decided
// within the effort that is allowed (both have strides, unlike ones, and a million runs).
StatusOr<bool> SharesBytes(const GridFragment& a, uint64_t a_unit, const GridFragment& b,
                           uint64_t b_unit);

}  // namespace titan::weightstore::reshard

#endif  // TITAN_WEIGHTSTORE_RESHARD_BOXES_H_
