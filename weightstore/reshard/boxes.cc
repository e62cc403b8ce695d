// SPDX-License-Identifier: Apache-2.0
#include "weightstore/reshard/boxes.h"

#include <algorithm>
#include <utility>

namespace titan::weightstore::reshard {
namespace {

constexpr int64_t kPanelRows = 32;
constexpr uint64_t kPanelUnitBytes = 128;  // 32 lanes of an f32, or of two bf16
constexpr uint64_t kMaxRuns = uint64_t{1} << 20;

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Rows and columns of a unit of a packed layout.
std::pair<int64_t, int64_t> PanelUnit(Layout layout) {
  return {kPanelRows, layout == Layout::kPanels32K2 ? 2 : 1};
}

bool Multiply(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product) && *product <= kMaxBytes;
}
bool Add(uint64_t a, uint64_t b, uint64_t* sum) {
  return !__builtin_add_overflow(a, b, sum) && *sum <= kMaxBytes;
}

// The dimensions that have more than one unit, by stride, largest first, where neighbours that
// continue each other are one: a canonical form.
struct Shape {
  std::vector<uint64_t> extents;
  std::vector<uint64_t> strides;
  uint64_t run_bytes = 0;  // contiguous bytes at each index
};
Shape ShapeOf(const GridFragment& fragment, uint64_t unit_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> dims;  // stride, extent
  for (size_t d = 0; d < fragment.box.shape.size(); ++d) {
    const auto extent = static_cast<uint64_t>(fragment.box.shape[d]);
    if (extent > 1) dims.emplace_back(fragment.strides[d], extent);
  }
  std::sort(dims.begin(), dims.end());
  Shape shape;
  shape.run_bytes = unit_bytes;
  for (const auto& [stride, extent] : dims) {
    if (shape.extents.empty() && stride == shape.run_bytes) {
      shape.run_bytes *= extent;
    } else if (!shape.extents.empty() && stride == shape.strides.back() * shape.extents.back()) {
      shape.extents.back() *= extent;
    } else {
      shape.strides.push_back(stride);
      shape.extents.push_back(extent);
    }
  }
  std::reverse(shape.extents.begin(), shape.extents.end());
  std::reverse(shape.strides.begin(), shape.strides.end());
  return shape;
}

// Is there an index pair with a_begin + i * strides and b_begin + j * strides closer than the runs?
// distance = b_begin - a_begin. Strides are nested (a stride is at least the span of what is
// inside), so at each level only the two nearest differences can lead to a hit.
bool MeetsNested(const Shape& a, const Shape& b, size_t level, int64_t distance) {
  if (level == a.strides.size()) {
    return distance < static_cast<int64_t>(a.run_bytes) &&
           -distance < static_cast<int64_t>(b.run_bytes);
  }
  const auto stride = static_cast<int64_t>(a.strides[level]);
  const auto a_last = static_cast<int64_t>(a.extents[level]) - 1;
  const auto b_last = static_cast<int64_t>(b.extents[level]) - 1;
  // i - j that brings the distance nearest to 0.
  const int64_t floor = distance >= 0 ? distance / stride : -CeilDiv(-distance, stride);
  for (const int64_t difference : {floor, floor + 1}) {
    if (difference < -b_last || difference > a_last) continue;
    if (MeetsNested(a, b, level + 1, distance - difference * stride)) return true;
  }
  return false;
}

uint64_t NumRuns(const Shape& shape) {
  uint64_t runs = 1;
  for (const uint64_t extent : shape.extents) {
    if (!Multiply(runs, extent, &runs)) return kMaxBytes;
  }
  return runs;
}

std::vector<uint64_t> RunBegins(const Shape& shape, uint64_t begin) {
  std::vector<uint64_t> begins = {begin};
  for (size_t d = 0; d < shape.extents.size(); ++d) {
    std::vector<uint64_t> next;
    next.reserve(begins.size() * shape.extents[d]);
    for (const uint64_t at : begins) {
      for (uint64_t i = 0; i < shape.extents[d]; ++i) next.push_back(at + i * shape.strides[d]);
    }
    begins = std::move(next);
  }
  std::sort(begins.begin(), begins.end());
  return begins;
}

// Strides of a contiguous box, and its bytes.
bool ContiguousStrides(const std::vector<int64_t>& shape, uint64_t unit_bytes,
                       std::vector<uint64_t>* strides) {
  strides->assign(shape.size(), 0);
  uint64_t bytes = unit_bytes;
  for (size_t d = shape.size(); d-- > 0;) {
    (*strides)[d] = bytes;
    if (!Multiply(bytes, static_cast<uint64_t>(shape[d]), &bytes)) return false;
  }
  return true;
}

// Cuts of one dimension of a packed layout, in units.
Status PanelRange(int64_t begin, int64_t size, int64_t whole, int64_t unit, const char* what,
                  const std::string& where, int64_t* unit_begin, int64_t* unit_size) {
  const int64_t end = begin + size;
  *unit_begin = begin / unit;
  *unit_size = 0;
  if (size == 0) return OkStatus();
  if (begin % unit != 0 || (end % unit != 0 && end != whole)) {
    return InvalidArgument("shape: " + where + ": " + what + " " + std::to_string(begin) + " to " +
                           std::to_string(end) + " cut a unit of " + std::to_string(unit) +
                           " of the packed layout; cut at multiples of it");
  }
  *unit_size = CeilDiv(end, unit) - *unit_begin;
  return OkStatus();
}

}  // namespace

bool Box::empty() const {
  return std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent == 0; });
}

std::string ToText(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.begin.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(box.begin[d]) + ":" + std::to_string(box.end(d));
  }
  return text + "]";
}

Box Intersect(const Box& a, const Box& b) {
  Box both = a;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    both.shape[d] = std::max<int64_t>(0, std::min(a.end(d), b.end(d)) - both.begin[d]);
  }
  return both;
}

void Subtract(const Box& a, const Box& b, std::vector<Box>* out) {
  const Box both = Intersect(a, b);
  if (both.empty()) {
    if (!a.empty()) out->push_back(a);
    return;
  }
  Box rest = a;  // what is left of `a` once the dimensions before d are those of `both`
  for (size_t d = 0; d < a.begin.size(); ++d) {
    if (both.begin[d] > rest.begin[d]) {
      Box before = rest;
      before.shape[d] = both.begin[d] - rest.begin[d];
      out->push_back(std::move(before));
    }
    if (both.end(d) < rest.end(d)) {
      Box after = rest;
      after.begin[d] = both.end(d);
      after.shape[d] = rest.end(d) - both.end(d);
      out->push_back(std::move(after));
    }
    rest.begin[d] = both.begin[d];
    rest.shape[d] = both.shape[d];
  }
}

Grid GridOf(const TensorSpec& tensor) {
  if (tensor.layout == Layout::kRows) {
    std::vector<int64_t> shape = tensor.shape;
    if (shape.empty()) shape.push_back(1);
    return {std::move(shape), static_cast<uint64_t>(ElementBytes(tensor.dtype))};
  }
  const auto [rows, columns] = PanelUnit(tensor.layout);
  return {{CeilDiv(tensor.shape[0], rows), CeilDiv(tensor.shape[1], columns)}, kPanelUnitBytes};
}

Status CheckTensor(const TensorSpec& tensor) {
  const std::string where = "tensor '" + tensor.name + "'";
  if (tensor.name.empty()) return InvalidArgument("shape: a tensor without a name");
  if (tensor.shape.size() > kMaxRank) {
    return InvalidArgument("shape: " + where + ": at most 8 dimensions");
  }
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBf16) {
    return InvalidArgument("shape: " + where + ": dtype must be f32, f16 or bf16");
  }
  for (const int64_t extent : tensor.shape) {
    if (extent < 0) return InvalidArgument("shape: " + where + ": a negative dimension");
    if (static_cast<uint64_t>(extent) > kMaxBytes) {
      return InvalidArgument("overflow: " + where + ": a dimension of more than 2^60");
    }
  }
  const bool pairs = tensor.layout == Layout::kPanels32K2;
  if (pairs || tensor.layout == Layout::kPanels32) {
    if (tensor.shape.size() != 2 || tensor.dtype != (pairs ? DType::kBf16 : DType::kF32)) {
      return InvalidArgument("shape: " + where + ": layout " + std::string(NameOf(tensor.layout)) +
                             " holds matrices of " + (pairs ? "bf16" : "f32"));
    }
  } else if (tensor.layout != Layout::kRows) {
    return InvalidArgument("shape: " + where + ": layout must be rows, panels32 or panels32k2");
  }
  const Grid grid = GridOf(tensor);
  std::vector<uint64_t> strides;
  // A dimension of 0 must not hide the overflow of the others.
  std::vector<int64_t> extents = grid.shape;
  for (int64_t& extent : extents) extent = std::max<int64_t>(extent, 1);
  if (!ContiguousStrides(extents, grid.unit_bytes, &strides)) {
    return InvalidArgument("overflow: " + where + ": more than 2^60 bytes");
  }
  return OkStatus();
}

Status PlaceOnGrid(const TensorSpec& tensor, const Fragment& fragment, uint64_t slot_bytes,
                   const std::string& where, GridFragment* out) {
  const size_t rank = tensor.shape.size();
  if (fragment.begin.size() != rank || fragment.shape.size() != rank) {
    return InvalidArgument("shape: " + where + ": the fragment has " +
                           std::to_string(fragment.shape.size()) + " dimensions, the tensor " +
                           std::to_string(rank));
  }
  for (size_t d = 0; d < rank; ++d) {
    if (fragment.begin[d] < 0 || fragment.shape[d] < 0 || fragment.begin[d] > tensor.shape[d] ||
        fragment.shape[d] > tensor.shape[d] - fragment.begin[d]) {
      return InvalidArgument("shape: " + where + ": dimension " + std::to_string(d) +
                             " of the fragment, " + std::to_string(fragment.shape[d]) + " from " +
                             std::to_string(fragment.begin[d]) + ", lies outside of the tensor's " +
                             std::to_string(tensor.shape[d]));
    }
  }
  const Grid grid = GridOf(tensor);
  out->slot_offset = out->end = fragment.slot_offset;
  if (tensor.layout == Layout::kRows) {
    out->box = rank == 0 ? Box{{0}, {1}} : Box{fragment.begin, fragment.shape};
  } else {
    const auto [rows, columns] = PanelUnit(tensor.layout);
    out->box = {{0, 0}, {0, 0}};
    TITAN_RETURN_IF_ERROR(PanelRange(fragment.begin[0], fragment.shape[0], tensor.shape[0], rows,
                                     "rows", where, &out->box.begin[0], &out->box.shape[0]));
    TITAN_RETURN_IF_ERROR(PanelRange(fragment.begin[1], fragment.shape[1], tensor.shape[1], columns,
                                     "columns", where, &out->box.begin[1], &out->box.shape[1]));
    if (!fragment.strides.empty()) {
      return InvalidArgument("shape: " + where + ": strides are for the layout rows alone");
    }
  }
  if (out->box.empty()) {
    out->strides.assign(out->box.shape.size(), 0);
    return fragment.slot_offset <= slot_bytes
               ? OkStatus()
               : InvalidArgument("bounds: " + where + ": an offset outside of the slot");
  }
  if (fragment.strides.empty()) {
    if (!ContiguousStrides(out->box.shape, grid.unit_bytes, &out->strides)) {
      return InvalidArgument("overflow: " + where + ": more than 2^60 bytes");
    }
  } else if (fragment.strides.size() != out->box.shape.size()) {
    return InvalidArgument("shape: " + where + ": one stride for each dimension, or none");
  } else {
    out->strides = fragment.strides;
  }
  // From the smallest stride up: each is at least the span of what it steps over.
  std::vector<std::pair<uint64_t, uint64_t>> dims;  // stride, extent
  for (size_t d = 0; d < out->box.shape.size(); ++d) {
    dims.emplace_back(out->strides[d], static_cast<uint64_t>(out->box.shape[d]));
  }
  std::sort(dims.begin(), dims.end());
  uint64_t span = grid.unit_bytes;
  for (const auto& [stride, extent] : dims) {
    if (extent == 1) continue;
    if (stride < span) {
      return InvalidArgument("overlap: " + where + ": the fragment's strides make it share bytes " +
                             "with itself");
    }
    uint64_t step;
    if (!Multiply(stride, extent - 1, &step) || !Add(span, step, &span)) {
      return InvalidArgument("overflow: " + where + ": more than 2^60 bytes");
    }
  }
  if (!Add(out->slot_offset, span, &out->end)) {
    return InvalidArgument("overflow: " + where + ": an offset of more than 2^60 bytes");
  }
  if (out->end > slot_bytes) {
    return InvalidArgument("bounds: " + where + ": the fragment ends at byte " +
                           std::to_string(out->end) + " of a slot of " +
                           std::to_string(slot_bytes));
  }
  return OkStatus();
}

StatusOr<bool> SharesBytes(const GridFragment& a, uint64_t a_unit, const GridFragment& b,
                           uint64_t b_unit) {
  if (a.slot_offset >= a.end || b.slot_offset >= b.end) return false;
  if (a.end <= b.slot_offset || b.end <= a.slot_offset) return false;
  Shape a_shape = ShapeOf(a, a_unit), b_shape = ShapeOf(b, b_unit);
  if (a_shape.strides.empty() && b_shape.strides.empty()) return true;
  // One run beside strided ones: as if it had the same strides once.
  for (auto [one, other] : {std::pair{&a_shape, &b_shape}, std::pair{&b_shape, &a_shape}}) {
    if (one->strides.empty() && one->run_bytes <= other->strides.back()) {
      one->strides = other->strides;
      one->extents.assign(other->extents.size(), 1);
    }
  }
  if (a_shape.strides == b_shape.strides && a_shape.run_bytes <= a_shape.strides.back() &&
      b_shape.run_bytes <= b_shape.strides.back()) {
    return MeetsNested(a_shape, b_shape, 0,
                       static_cast<int64_t>(b.slot_offset) - static_cast<int64_t>(a.slot_offset));
  }
  if (NumRuns(a_shape) > kMaxRuns || NumRuns(b_shape) > kMaxRuns) {
    return InvalidArgument("overlap: fragments with unlike strides, too many to compare");
  }
  const std::vector<uint64_t> a_runs = RunBegins(a_shape, a.slot_offset);
  const std::vector<uint64_t> b_runs = RunBegins(b_shape, b.slot_offset);
  for (size_t i = 0, j = 0; i < a_runs.size() && j < b_runs.size();) {
    if (a_runs[i] + a_shape.run_bytes <= b_runs[j]) {
      ++i;
    } else if (b_runs[j] + b_shape.run_bytes <= a_runs[i]) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

}  // namespace titan::weightstore::reshard
