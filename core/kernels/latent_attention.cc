// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/latent_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"

#ifndef TITAN_CORE_KERNELS_LATENT_ATTENTION_PARTS_
#define TITAN_CORE_KERNELS_LATENT_ATTENTION_PARTS_
namespace titan::kernels {

// The cached rows of one sequence.
struct LatentView {
  const LatentShape& shape;
  const Segment& segment;
  const float* base;

  const float* Page(int64_t position) const {
    return base + segment.pages[position / kPageTokens] * LatentPageFloats(shape);
  }
  const float* Latents(int64_t position) const {
    return Page(position) + shape.width() * kPageTokens;
  }
};

// Of one query row and head.
struct LatentQuery {
  const float *q, *out, *dout;
  float row_max, row_sum;
};

}  // namespace titan::kernels
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/latent_attention.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/chain-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// s[j] = score of position first + j, j < count; what lies between count and the page's end is
// written too, to no use. s has room for 64.
void ScoresOf(const LatentView& view, const float* qs, int64_t first, int64_t count, float* s) {
  const int64_t width = view.shape.width();
  for (int64_t j = 0; j < count; j += kPageTokens) {
    ChainFromZero(qs, 1, view.Page(first + j), kPageTokens, width, kPageTokens, s + j);
  }
}

// o[r] = chain over positions first + j, j < count, of fma(weights[j], latent_j[r], o[r]).
void AddLatents(const LatentView& view, const float* weights, int64_t first, int64_t count,
                float* o) {
  const int64_t latent = view.shape.latent;
  for (int64_t j = 0; j < count; j += kPageTokens) {
    Chain(weights + j, 1, view.Latents(first + j), latent, std::min(kPageTokens, count - j), latent,
          o);
  }
}

// x[j] = DExp(x[j] - base) for j < count, +0 for the rest of 64.
void ExpBlock(float base, int64_t count, float* x) {
  for (int64_t j = 0; j < kKeyBlock; j += kLanes) {
    const int64_t left = std::max<int64_t>(0, std::min<int64_t>(kLanes, count - j));
    FloatVec p = hn::Zero(FloatTag());
    if (left > 0) {
      p = VExp(hn::Sub(LoadPart(x + j, left), Broadcast(base)));
      if (left < kLanes) {
        p = hn::IfThenElseZero(hn::FirstN(FloatTag(), static_cast<size_t>(left)), p);
      }
    }
    Store(p, x + j);
  }
}

float TreeOf(const float* lanes) {
  FloatVec v[kRowSumLanes / kLanes];
  for (int64_t i = 0; i < kRowSumLanes / kLanes; ++i) v[i] = Load(lanes + i * kLanes);
  return Tree64(v);
}

float ExpOf1(float x) {
  float lanes[kKeyBlock] = {x};
  ExpBlock(0.0f, 1, lanes);
  return lanes[0];
}

void LatentRow(const LatentView& view, const float* q, int64_t visible, float* out, float* row_max,
               float* row_sum) {
  const LatentShape& shape = view.shape;
  float qs[kMaxLatentWidth], total[kMaxLatentWidth], o[kMaxLatentWidth], s[kKeyBlock];
  Scale(q, shape.scale, shape.width(), qs);
  float total_max = 0, total_sum = 0;
  for (int64_t segment = 0; segment < visible; segment += kKeySegment) {
    float m = -std::numeric_limits<float>::infinity(), l = 0.0f;
    std::fill(o, o + shape.latent, 0.0f);
    const int64_t end = std::min(visible, segment + kKeySegment);
    for (int64_t block = segment; block < end; block += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, end - block);
      ScoresOf(view, qs, block, count, s);
      float max = m;
      for (int64_t j = 0; j < count; ++j) max = std::max(max, s[j]);
      ExpBlock(max, count, s);
      const float alpha = block == segment ? 0.0f : ExpOf1(m - max);
      float sum = TreeOf(s);
      Chain(&l, 1, &alpha, 1, 1, 1, &sum);
      l = sum;
      Scale(o, alpha, shape.latent, o);
      AddLatents(view, s, block, count, o);
      m = max;
    }
    if (segment == 0) {
      total_max = m, total_sum = l;
      std::copy(o, o + shape.latent, total);
      continue;
    }
    const float max = std::max(total_max, m);
    const float x = ExpOf1(total_max - max), y = ExpOf1(m - max);
    float sum = l * y;
    Chain(&total_sum, 1, &x, 1, 1, 1, &sum);
    Scale(total, x, shape.latent, total);
    Chain(&y, 1, o, shape.latent, 1, shape.latent, total);
    total_max = max, total_sum = sum;
  }
  Scale(total, 1.0f / total_sum, shape.latent, out);
  if (row_max == nullptr) return;
  *row_max = total_max + 0.0f;
  *row_sum = total_sum;
}

// p[j] and ds[j] of positions first + j, j < count <= 64, for one query.
void LatentSlopes(const LatentView& view, const LatentQuery& query, const float* qs, float d,
                  int64_t first, int64_t count, float* p, float* ds) {
  const LatentShape& shape = view.shape;
  ScoresOf(view, qs, first, count, p);
  ExpBlock(query.row_max, count, p);
  Scale(p, 1.0f / query.row_sum, kKeyBlock, p);
  for (int64_t j = 0; j < count; j += kPageTokens) {
    ChainFromZero(query.dout, 1, view.Page(first + j), kPageTokens, shape.latent, kPageTokens,
                  ds + j);
  }
  for (int64_t j = 0; j < count; ++j) ds[j] = p[j] * (ds[j] - d);
}

void LatentRowBackward(const LatentView& view, const LatentQuery& query, int64_t visible,
                       float* dq) {
  const LatentShape& shape = view.shape;
  const int64_t width = shape.width();
  float qs[kMaxLatentWidth], p[kKeyBlock], ds[kKeyBlock], rows[kPageTokens * kMaxLatentWidth];
  Scale(query.q, shape.scale, width, qs);
  const float d = RowSumProductVector(query.dout, query.out, shape.latent);
  std::fill(dq, dq + width, 0.0f);
  for (int64_t block = 0; block < visible; block += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, visible - block);
    LatentSlopes(view, query, qs, d, block, count, p, ds);
    for (int64_t j = 0; j < count; j += kPageTokens) {
      const int64_t here = std::min(kPageTokens, count - j);
      Transpose(view.Page(block + j), kPageTokens, width, here, width, rows);
      Chain(ds + j, 1, rows, width, here, width, dq);
    }
  }
  Scale(dq, shape.scale, width, dq);
}

// Adds one query to the two gradients of positions [first, first + count): as_key [count][width],
// as_value [count][latent]; the query sees `visible` positions.
void LatentAddQuery(const LatentView& view, const LatentQuery& query, int64_t visible,
                    int64_t first, int64_t count, float* as_key, float* as_value) {
  const LatentShape& shape = view.shape;
  float qs[kMaxLatentWidth], p[kKeyBlock], ds[kKeyBlock];
  Scale(query.q, shape.scale, shape.width(), qs);
  const float d = RowSumProductVector(query.dout, query.out, shape.latent);
  const int64_t seen = std::min(count, visible - first);
  LatentSlopes(view, query, qs, d, first, seen, p, ds);
  for (int64_t j = 0; j < seen; ++j) {
    Chain(ds + j, 1, qs, shape.width(), 1, shape.width(), as_key + j * shape.width());
    Chain(p + j, 1, query.dout, shape.latent, 1, shape.latent, as_value + j * shape.latent);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

// Rows of all segments, each with its segment.
struct RowOfSegment {
  size_t segment;
  int64_t row, position;
};

std::vector<RowOfSegment> RowsOf(std::span<const Segment> segments) {
  std::vector<RowOfSegment> rows;
  for (size_t s = 0; s < segments.size(); ++s) {
    TITAN_CHECK(segments[s].parent < 0);
    for (int64_t i = 0; i < segments[s].num_rows; ++i) {
      rows.push_back({s, segments[s].first_row + i, segments[s].first_position + i});
    }
  }
  return rows;
}

}  // namespace

Status ValidateLatentShape(const LatentShape& shape) {
  const auto refuse = [](const char* field, int64_t value, const char* need) {
    return InvalidArgument(std::string("latent attention: ") + field + " " + std::to_string(value) +
                           " must be " + need);
  };
  if (shape.heads < 1) return refuse("heads", shape.heads, "at least 1");
  if (shape.latent < 1) return refuse("latent", shape.latent, "at least 1");
  if (shape.rope < 0) return refuse("rope", shape.rope, "at least 0");
  if (shape.width() > kMaxLatentWidth) {
    return refuse("latent + rope", shape.width(), "at most 1024");
  }
  return OkStatus();
}

int64_t LatentPageFloats(const LatentShape& shape) {
  return kPageTokens * (shape.width() + shape.latent);
}

void WriteLatent(Pool& pool, const LatentShape& shape, const float* rows,
                 std::span<const Segment> segments, float* base) {
  TITAN_CHECK(ValidateLatentShape(shape).ok());
  const int64_t width = shape.width();
  pool.Run(static_cast<int>(segments.size()), [&](int task) {
    const Segment& segment = segments[static_cast<size_t>(task)];
    for (int64_t i = 0; i < segment.num_rows; ++i) {
      const int64_t position = segment.first_position + i, slot = position % kPageTokens;
      float* page = base + segment.pages[position / kPageTokens] * LatentPageFloats(shape);
      const float* row = rows + (segment.first_row + i) * width;
      for (int64_t d = 0; d < width; ++d) page[d * kPageTokens + slot] = row[d];
      std::memcpy(page + width * kPageTokens + slot * shape.latent, row,
                  static_cast<size_t>(shape.latent) * sizeof(float));
    }
  });
}

void LatentAttentionForward(Pool& pool, const LatentShape& shape, const float* q,
                            std::span<const Segment> segments, const float* base, float* out,
                            float* row_max, float* row_sum) {
  TITAN_CHECK(ValidateLatentShape(shape).ok());
  const std::vector<RowOfSegment> rows = RowsOf(segments);
  pool.Run(static_cast<int>(static_cast<int64_t>(rows.size()) * shape.heads), [&](int task) {
    const RowOfSegment& r = rows[static_cast<size_t>(task / shape.heads)];
    const LatentView view = {shape, segments[r.segment], base};
    const int64_t at = r.row * shape.heads + task % shape.heads;
    TITAN_DISPATCH(LatentRow)
    (view, q + at * shape.width(), r.position + 1, out + at * shape.latent,
     row_max == nullptr ? nullptr : row_max + at, row_sum == nullptr ? nullptr : row_sum + at);
  });
}

void LatentAttentionBackward(Pool& pool, const LatentShape& shape, const float* q,
                             std::span<const Segment> segments, const float* base, const float* out,
                             const float* dout, const float* row_max, const float* row_sum,
                             float* dq, float* dcache) {
  TITAN_CHECK(ValidateLatentShape(shape).ok());
  const int64_t heads = shape.heads, width = shape.width(), latent = shape.latent;
  const auto query_of = [&](int64_t at) {
    return LatentQuery{q + at * width, out + at * latent, dout + at * latent, row_max[at],
                       row_sum[at]};
  };
  const std::vector<RowOfSegment> rows = RowsOf(segments);
  pool.Run(static_cast<int>(static_cast<int64_t>(rows.size()) * heads), [&](int task) {
    const RowOfSegment& r = rows[static_cast<size_t>(task / heads)];
    TITAN_CHECK(segments[r.segment].first_position == 0);
    const int64_t at = r.row * heads + task % heads;
    TITAN_DISPATCH(LatentRowBackward)
    ({shape, segments[r.segment], base}, query_of(at), r.position + 1, dq + at * width);
  });
  // A task is one block of keys of one segment.
  struct Block {
    size_t segment;
    int64_t first;
  };
  std::vector<Block> blocks;
  for (size_t s = 0; s < segments.size(); ++s) {
    for (int64_t first = 0; first < segments[s].num_rows; first += kKeyBlock) {
      blocks.push_back({s, first});
    }
  }
  pool.Run(static_cast<int>(blocks.size()), [&](int task) {
    const Block& block = blocks[static_cast<size_t>(task)];
    const Segment& segment = segments[block.segment];
    const LatentView view = {shape, segment, base};
    const int64_t count = std::min<int64_t>(kKeyBlock, segment.num_rows - block.first);
    std::vector<float> keys(static_cast<size_t>(count * width)),
        values(static_cast<size_t>(count * latent));
    std::vector<float> all_keys(keys.size()), all_values(values.size());
    for (int64_t h = 0; h < heads; ++h) {
      std::fill(keys.begin(), keys.end(), 0.0f);
      std::fill(values.begin(), values.end(), 0.0f);
      for (int64_t t = block.first; t < segment.num_rows; ++t) {
        TITAN_DISPATCH(LatentAddQuery)
        (view, query_of((segment.first_row + t) * heads + h), t + 1, block.first, count,
         keys.data(), values.data());
      }
      for (size_t i = 0; i < keys.size(); ++i)
        all_keys[i] = h == 0 ? keys[i] : all_keys[i] + keys[i];
      for (size_t i = 0; i < values.size(); ++i) {
        all_values[i] = h == 0 ? values[i] : all_values[i] + values[i];
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      float* row = dcache + (segment.first_row + block.first + j) * width;
      const float* key = all_keys.data() + j * width;
      const float* value = all_values.data() + j * latent;
      for (int64_t d = 0; d < width; ++d) row[d] = d < latent ? key[d] + value[d] : key[d];
    }
  });
}

void PerHeadLinear(Pool& pool, const float* x, int64_t rows, std::span<const ConstPanels> panels,
                   int64_t n, int64_t k, int leaves, float* out, Inputs inputs) {
  const int64_t heads = static_cast<int64_t>(panels.size());
  for (int64_t h = 0; h < heads; ++h) {
    Linear(pool, {x + h * k, heads * k, rows, k, inputs},
           {panels[static_cast<size_t>(h)], n, leaves, nullptr, out + h * n, heads * n});
  }
}

void PerHeadWeightGradient(Pool& pool, std::span<const RowRange> units, const float* x,
                           const float* dy, int64_t n, int64_t k,
                           std::span<float* const> accumulators, Inputs inputs) {
  const int64_t heads = static_cast<int64_t>(accumulators.size());
  for (const RowRange& unit : units) {
    for (int64_t h = 0; h < heads; ++h) {
      const LinearRows rows = {x + (unit.begin * heads + h) * k, heads * k, unit.end - unit.begin,
                               k, inputs};
      LinearWeightGradient(
          pool, rows,
          {dy + (unit.begin * heads + h) * n, heads * n, n, accumulators[static_cast<size_t>(h)]});
    }
  }
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
