// SPDX-License-Identifier: Apache-2.0
//
// The scalar twin of attention.cc.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/order.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels::reference {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct KeyView {
  const AttentionShape& shape;
  const Segment& segment;
  const float* base;
  int kv_head;

  const float* Head(int64_t position) const {
    return base + segment.pages[position / kPageTokens] * PageFloats(shape) +
           static_cast<int64_t>(kv_head) * 2 * shape.head_dim * kPageTokens;
  }
  float Key(int64_t position, int d) const {
    return Head(position)[d * kPageTokens + position % kPageTokens];
  }
  float Value(int64_t position, int d) const {
    return Head(position)[(kPageTokens + position % kPageTokens) * shape.head_dim + d];
  }
  float Score(const std::vector<float>& qs, int64_t position) const {
    float acc = 0.0f;
    for (int d = 0; d < shape.head_dim; ++d) acc = std::fma(qs[d], Key(position, d), acc);
    return acc;
  }
};

struct State {
  float max = kMinusInfinity;
  float sum = 0.0f;
  std::vector<float> o;
};

// Keys [lowest, visible) of the segment that begins at `begin`.
State OneSegment(const KeyView& keys, const std::vector<float>& qs, int64_t begin, int64_t lowest,
                 int64_t visible) {
  const int head_dim = keys.shape.head_dim;
  State state;
  state.o.assign(head_dim, 0.0f);
  bool first = true;
  for (int64_t block = begin; block < std::min(visible, begin + kKeySegment); block += kKeyBlock) {
    const int64_t from = std::max<int64_t>(0, lowest - block);
    const int64_t count = std::min(kKeyBlock, visible - block);
    if (from >= count) continue;
    float p[kKeyBlock] = {};
    float max = state.max;
    for (int64_t j = from; j < count; ++j) {
      p[j] = keys.Score(qs, block + j);
      max = p[j] > max ? p[j] : max;
    }
    for (int64_t j = from; j < count; ++j) p[j] = DExp(p[j] - max);
    float lane[kKeyBlock];
    std::copy(p, p + kKeyBlock, lane);
    for (int64_t h = kKeyBlock / 2; h > 0; h /= 2) {
      for (int64_t j = 0; j < h; ++j) lane[j] = lane[j] + lane[j + h];
    }
    const float alpha = first ? 0.0f : DExp(state.max - max);
    first = false;
    state.sum = std::fma(state.sum, alpha, lane[0]);
    for (int d = 0; d < head_dim; ++d) {
      float o = state.o[d] * alpha;
      for (int64_t j = from; j < count; ++j) o = std::fma(p[j], keys.Value(block + j, d), o);
      state.o[d] = o;
    }
    state.max = max;
  }
  return state;
}

void Merge(State& a, const State& b) {
  const float max = b.max > a.max ? b.max : a.max;
  const float x = DExp(a.max - max), y = DExp(b.max - max);
  a.sum = std::fma(a.sum, x, b.sum * y);
  for (size_t d = 0; d < a.o.size(); ++d) a.o[d] = std::fma(b.o[d], y, a.o[d] * x);
  a.max = max;
}

std::vector<float> Scaled(const float* q, const AttentionShape& shape) {
  std::vector<float> qs(shape.head_dim);
  for (int d = 0; d < shape.head_dim; ++d) qs[d] = q[d] * shape.scale;
  return qs;
}

void AddTerm(std::vector<float>& sum, const std::vector<float>& term) {
  if (sum.empty()) {
    sum = term;
  } else {
    for (size_t i = 0; i < term.size(); ++i) sum[i] = sum[i] + term[i];
  }
}

}  // namespace

void WriteKv(const AttentionShape& shape, const float* k, const float* v,
             std::span<const Segment> segments, float* base) {
  const int64_t width = static_cast<int64_t>(shape.num_kv_heads) * shape.head_dim;
  for (const Segment& segment : segments) {
    const int64_t tail = segment.parent < 0 ? 0 : segment.first_position % kPageTokens;
    for (int64_t i = -tail; i < segment.num_rows; ++i) {
      const int64_t position = segment.first_position + i;
      const int64_t row =
          i < 0 ? segments[segment.parent].first_row + position : segment.first_row + i;
      const int64_t slot = position % kPageTokens;
      float* page = base + segment.pages[position / kPageTokens] * PageFloats(shape);
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        float* head = page + static_cast<int64_t>(h) * 2 * shape.head_dim * kPageTokens;
        for (int d = 0; d < shape.head_dim; ++d) {
          head[d * kPageTokens + slot] = k[row * width + h * shape.head_dim + d];
          head[(kPageTokens + slot) * shape.head_dim + d] = v[row * width + h * shape.head_dim + d];
        }
      }
    }
  }
}

void AttentionForward(const AttentionShape& shape, const float* q,
                      std::span<const Segment> segments, const float* base, float* out,
                      float* row_max, float* row_sum) {
  const int64_t width = static_cast<int64_t>(shape.num_heads) * shape.head_dim;
  const int group = shape.num_heads / shape.num_kv_heads;
  for (const Segment& segment : segments) {
    for (int64_t i = 0; i < segment.num_rows; ++i) {
      const int64_t row = segment.first_row + i, visible = segment.first_position + i + 1;
      for (int h = 0; h < shape.num_heads; ++h) {
        const KeyView keys{shape, segment, base, h / group};
        const std::vector<float> qs = Scaled(q + row * width + h * shape.head_dim, shape);
        const int64_t lowest = FirstVisible(shape, visible - 1);
        State state;
        for (int64_t begin = 0; begin < visible; begin += kKeySegment) {
          if (begin + kKeySegment <= lowest) continue;
          const State next = OneSegment(keys, qs, begin, lowest, visible);
          if (state.o.empty()) {
            state = next;
          } else {
            Merge(state, next);
          }
        }
        if (shape.sinks != nullptr) {
          Merge(state, {shape.sinks[h], 1.0f, std::vector<float>(state.o.size(), 0.0f)});
        }
        const float inverse = 1.0f / state.sum;
        for (int d = 0; d < shape.head_dim; ++d) {
          out[row * width + h * shape.head_dim + d] = state.o[d] * inverse;
        }
        if (row_max != nullptr) row_max[row * shape.num_heads + h] = state.max + 0.0f;
        if (row_sum != nullptr) row_sum[row * shape.num_heads + h] = state.sum;
      }
    }
  }
}

void AttentionBackward(const AttentionShape& shape, const float* q,
                       std::span<const Segment> segments, const float* base, const float* out,
                       const float* dout, const float* row_max, const float* row_sum, float* dq,
                       float* dk, float* dv) {
  const int head_dim = shape.head_dim, group = shape.num_heads / shape.num_kv_heads;
  const int64_t width = static_cast<int64_t>(shape.num_heads) * head_dim;
  const int64_t kv_width = static_cast<int64_t>(shape.num_kv_heads) * head_dim;
  // Of each segment, what those that continue it give to its keys.
  std::vector<std::vector<float>> dk_prefix(segments.size()), dv_prefix(segments.size());
  for (const Segment& segment : segments) {
    const int64_t prefix = segment.first_position, n = prefix + segment.num_rows;
    std::vector<float> dk_all(n * kv_width), dv_all(n * kv_width);
    for (int h = 0; h < shape.num_heads; ++h) {
      const KeyView keys{shape, segment, base, h / group};
      std::vector<float> dk_head(n * head_dim, 0.0f), dv_head(n * head_dim, 0.0f);
      for (int64_t i = 0; i < segment.num_rows; ++i) {
        const int64_t row = segment.first_row + i, at = row * width + h * head_dim;
        const std::vector<float> qs = Scaled(q + at, shape);
        const float delta = RowSumProduct(dout + at, out + at, head_dim);
        const float inverse = 1.0f / row_sum[row * shape.num_heads + h];
        std::vector<float> chain(head_dim, 0.0f);
        for (int64_t j = FirstVisible(shape, prefix + i); j <= prefix + i; ++j) {
          const float p = DExp(keys.Score(qs, j) - row_max[row * shape.num_heads + h]) * inverse;
          float dp = 0.0f;
          for (int d = 0; d < head_dim; ++d) dp = std::fma(dout[at + d], keys.Value(j, d), dp);
          const float ds = p * (dp - delta);
          for (int d = 0; d < head_dim; ++d) {
            chain[d] = std::fma(ds, keys.Key(j, d), chain[d]);
            dk_head[j * head_dim + d] = std::fma(ds, qs[d], dk_head[j * head_dim + d]);
            dv_head[j * head_dim + d] = std::fma(p, dout[at + d], dv_head[j * head_dim + d]);
          }
        }
        for (int d = 0; d < head_dim; ++d) dq[at + d] = chain[d] * shape.scale;
      }
      for (int64_t j = 0; j < n; ++j) {
        for (int d = 0; d < head_dim; ++d) {
          const int64_t to = j * kv_width + (h / group) * head_dim + d;
          const float dk_value = dk_head[j * head_dim + d], dv_value = dv_head[j * head_dim + d];
          dk_all[to] = h % group == 0 ? dk_value : dk_all[to] + dk_value;
          dv_all[to] = h % group == 0 ? dv_value : dv_all[to] + dv_value;
        }
      }
    }
    const int64_t own = prefix * kv_width;
    std::copy(dk_all.begin() + own, dk_all.end(), dk + segment.first_row * kv_width);
    std::copy(dv_all.begin() + own, dv_all.end(), dv + segment.first_row * kv_width);
    if (segment.parent < 0) continue;
    dk_all.resize(own), dv_all.resize(own);
    AddTerm(dk_prefix[segment.parent], dk_all);
    AddTerm(dv_prefix[segment.parent], dv_all);
  }
  for (size_t s = 0; s < segments.size(); ++s) {
    for (size_t i = 0; i < dk_prefix[s].size(); ++i) {
      const int64_t at = segments[s].first_row * kv_width + static_cast<int64_t>(i);
      dk[at] = dk[at] + dk_prefix[s][i];
      dv[at] = dv[at] + dv_prefix[s][i];
    }
  }
}

void SinkGradient(const AttentionShape& shape, const float* out, const float* dout,
                  const float* row_max, const float* row_sum, std::span<const RowRange> units,
                  float* dsinks) {
  for (const RowRange& unit : units) {
    for (int h = 0; h < shape.num_heads; ++h) {
      float chain = 0.0f;
      for (int64_t row = unit.begin; row < unit.end; ++row) {
        const int64_t at = row * shape.num_heads + h;
        const float delta =
            RowSumProduct(dout + at * shape.head_dim, out + at * shape.head_dim, shape.head_dim);
        const float share = DExp(shape.sinks[h] - row_max[at]) * (1.0f / row_sum[at]);
        chain = std::fma(share, -delta, chain);
      }
      dsinks[h] = dsinks[h] + chain;
    }
  }
}

}  // namespace titan::kernels::reference
