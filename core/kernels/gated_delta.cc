// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/gated_delta.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/isa.h"
#include "core/kernels/pool.h"

#ifndef TITAN_CORE_KERNELS_GATED_DELTA_PARTS_
#define TITAN_CORE_KERNELS_GATED_DELTA_PARTS_
namespace titan::kernels {

inline constexpr int64_t kMaxDeltaDim = 256;
inline constexpr float kDeltaZero = 0.0f;

// One value head's part of a sequence's state.
struct DeltaHead {
  DeltaHead(const DeltaShape& shape, float* base, int64_t head) {
    state = base + head * Floats(shape);
    keys = state + shape.key_dim * shape.value_dim;
    deltas = keys + shape.key_dim * kDeltaChunk;
    decays = deltas + kDeltaChunk * shape.value_dim;
  }
  static int64_t Floats(const DeltaShape& shape) {
    return shape.key_dim * shape.value_dim + kDeltaChunk * (shape.key_dim + shape.value_dim + 1);
  }
  float* state;   // [key_dim][value_dim]
  float* keys;    // [key_dim][64]
  float* deltas;  // [64][value_dim]
  float* decays;  // [64], summed
};

// A token's operands of one value head.
struct DeltaToken {
  const float *q, *k, *v;
  float g, beta;
  float* out;
  float* u;  // or null
};

// One chunk of the backward, of one value head. Strides are floats from token to token.
struct DeltaChunkGradient {
  int64_t tokens = 0;
  bool has_next = false;
  const float *q, *k, *u, *dout, *g, *beta, *start;
  float *dq, *dk, *dv, *dg, *dbeta;
  int64_t key_stride = 0, value_stride = 0, head_stride = 0;
  bool add = false;  // dq and dk: add to what stands there
};

// Working memory of one task.
struct DeltaScratch {
  explicit DeltaScratch(const DeltaShape& shape)
      : next(static_cast<size_t>(shape.key_dim * shape.value_dim)),
        next_transposed(next.size()),
        start_transposed(next.size()),
        keys_transposed(static_cast<size_t>(shape.key_dim * kDeltaChunk)),
        deltas(static_cast<size_t>(kDeltaChunk * shape.value_dim)),
        deltas_transposed(deltas.size()),
        rows(2 * deltas.size()),
        factors(3 * static_cast<size_t>(kDeltaChunk)),
        ends(static_cast<size_t>(kDeltaChunk * shape.key_dim)) {
    for (std::vector<float>* m : {&qk, &kk, &decay, &qk_decayed, &kk_decayed, &x, &y}) {
      m->resize(static_cast<size_t>(kDeltaChunk * kDeltaChunk));
    }
  }
  std::vector<float> next, next_transposed, start_transposed, keys_transposed, deltas,
      deltas_transposed, rows, factors, ends;
  std::vector<float> qk, kk, decay, qk_decayed, kk_decayed, x, y;  // [64][64]
};

}  // namespace titan::kernels
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gated_delta.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/chain-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

float ExpOfOne(float x) {
  float out;
  ExpBelow(x, &kDeltaZero, 1, &out);
  return out;
}

void DeltaRow(const DeltaShape& shape, const DeltaHead& head, int64_t place,
              const DeltaToken& token) {
  const int64_t key_dim = shape.key_dim, width = shape.value_dim;
  float kk[kDeltaChunk], qk[kDeltaChunk], decay[kDeltaChunk], read[kMaxDeltaDim];
  for (int64_t d = 0; d < key_dim; ++d) head.keys[d * kDeltaChunk + place] = token.k[d];
  head.decays[place] = place == 0 ? token.g : head.decays[place - 1] + token.g;
  const float e = ExpOfOne(head.decays[place]);
  ChainFromZero(token.k, 1, head.keys, kDeltaChunk, key_dim, place + 1, kk);
  ChainFromZero(token.q, 1, head.keys, kDeltaChunk, key_dim, place + 1, qk);
  ExpBelow(head.decays[place], head.decays, place, decay);
  Multiply(kk, decay, place, kk);
  Multiply(qk, decay, place, qk);

  ChainFromZero(token.k, 1, head.state, width, key_dim, width, read);
  Scale(read, e, width, read);
  Chain(kk, 1, head.deltas, width, place, width, read);
  float* delta = head.deltas + place * width;
  for (int64_t j = 0; j < width; ++j) {
    const float u = token.v[j] - read[j];
    if (token.u != nullptr) token.u[j] = u;
    delta[j] = u * token.beta;
  }
  ChainFromZero(token.q, 1, head.state, width, key_dim, width, read);
  Scale(read, e, width, read);
  Chain(qk, 1, head.deltas, width, place + 1, width, read);
  std::copy(read, read + width, token.out);
  if (place + 1 < kDeltaChunk) return;
  ExpBelow(head.decays[place], head.decays, kDeltaChunk, decay);
  for (int64_t d = 0; d < key_dim; ++d) {
    float factors[kDeltaChunk];
    Multiply(head.keys + d * kDeltaChunk, decay, kDeltaChunk, factors);
    Scale(head.state + d * width, e, width, head.state + d * width);
    Chain(factors, 1, head.deltas, width, kDeltaChunk, width, head.state + d * width);
  }
}

void DeltaChunkBackward(const DeltaShape& shape, const DeltaChunkGradient& c, DeltaScratch& s) {
  const int64_t key_dim = shape.key_dim, width = shape.value_dim, n = c.tokens;
  constexpr int64_t kStride = kDeltaChunk;
  const auto q = [&](int64_t t) { return c.q + t * c.key_stride; };
  const auto k = [&](int64_t t) { return c.k + t * c.key_stride; };
  const auto dout = [&](int64_t t) { return c.dout + t * c.value_stride; };
  float decays[kDeltaChunk], ends[kDeltaChunk], e[kDeltaChunk], f[kDeltaChunk], dg[kDeltaChunk];
  for (int64_t t = 0; t < n; ++t) {
    const float g = c.g[t * c.head_stride];
    decays[t] = t == 0 ? g : decays[t - 1] + g;
    e[t] = ExpOfOne(decays[t]);
    Scale(c.u + t * c.value_stride, c.beta[t * c.head_stride], width, &s.deltas[t * width]);
  }
  if (c.has_next) ExpBelow(decays[n - 1], decays, n, ends);
  Transpose(c.k, c.key_stride, n, key_dim, kStride, s.keys_transposed.data());
  Transpose(s.deltas.data(), width, n, width, kStride, s.deltas_transposed.data());
  Transpose(c.start, width, key_dim, width, key_dim, s.start_transposed.data());
  if (c.has_next) {
    Transpose(s.next.data(), width, key_dim, width, key_dim, s.next_transposed.data());
  }
  for (int64_t t = 0; t < n; ++t) {
    float* qk = &s.qk[t * kStride];
    float* kk = &s.kk[t * kStride];
    float* decay = &s.decay[t * kStride];
    ChainFromZero(q(t), 1, s.keys_transposed.data(), kStride, key_dim, t + 1, qk);
    ChainFromZero(k(t), 1, s.keys_transposed.data(), kStride, key_dim, t + 1, kk);
    ExpBelow(decays[t], decays, t, decay);
    Multiply(qk, decay, t, &s.qk_decayed[t * kStride]);
    Multiply(kk, decay, t, &s.kk_decayed[t * kStride]);
    s.qk_decayed[t * kStride + t] = qk[t];
    std::copy(dout(t), dout(t) + width, &s.rows[2 * t * width]);
  }
  // s.rows: dout_0, dr_0, dout_1, dr_1, ...
  const int64_t row_stride = 2 * width;
  for (int64_t t = n - 1; t >= 0; --t) {
    float ddelta[kMaxDeltaDim];
    std::fill(ddelta, ddelta + width, 0.0f);
    if (c.has_next) {
      Chain(k(t), 1, s.next.data(), width, key_dim, width, ddelta);
      Scale(ddelta, ends[t], width, ddelta);
    }
    Chain(&s.qk_decayed[t * kStride + t], kStride, &s.rows[t * row_stride], row_stride, n - t,
          width, ddelta);
    if (t + 1 < n) {
      Chain(&s.kk_decayed[(t + 1) * kStride + t], kStride, &s.rows[(t + 1) * row_stride + width],
            row_stride, n - t - 1, width, ddelta);
    }
    c.dbeta[t * c.head_stride] = RowSumProductVector(ddelta, c.u + t * c.value_stride, width);
    float* dv = c.dv + t * c.value_stride;
    float* dr = &s.rows[t * row_stride + width];
    Scale(ddelta, c.beta[t * c.head_stride], width, dv);
    for (int64_t j = 0; j < width; ++j) dr[j] = -dv[j];
  }
  for (int64_t t = 0; t < n; ++t) {
    float* x = &s.x[t * kStride];
    float* y = &s.y[t * kStride];
    ChainFromZero(dout(t), 1, s.deltas_transposed.data(), kStride, width, t + 1, x);
    Multiply(x, &s.decay[t * kStride], t, x);
    ChainFromZero(&s.rows[t * row_stride + width], 1, s.deltas_transposed.data(), kStride, width, t,
                  y);
    Multiply(y, &s.decay[t * kStride], t, y);
    float* end = &s.ends[t * key_dim];
    if (c.has_next) {
      ChainFromZero(&s.deltas[t * width], 1, s.next_transposed.data(), key_dim, width, key_dim,
                    end);
      f[t] = RowSumProductVector(k(t), end, key_dim) * ends[t];
    }
  }
  const auto z = [&](int64_t t, int64_t i) {
    const int64_t at = t * kStride + i;
    // One fused multiply-add: a chain of one element.
    float sum = s.kk[at] * s.y[at];
    Chain(&s.qk[at], 1, &s.x[at], 1, 1, 1, &sum);
    return sum;
  };
  for (int64_t t = 0; t < n; ++t) {
    float a[kMaxDeltaDim], b[kMaxDeltaDim];
    ChainFromZero(dout(t), 1, s.start_transposed.data(), key_dim, width, key_dim, a);
    ChainFromZero(&s.rows[t * row_stride + width], 1, s.start_transposed.data(), key_dim, width,
                  key_dim, b);
    dg[t] = (RowSumProductVector(a, q(t), key_dim) + RowSumProductVector(b, k(t), key_dim)) * e[t];
    Scale(a, e[t], key_dim, a);
    Chain(&s.x[t * kStride], 1, c.k, c.key_stride, t + 1, key_dim, a);
    Scale(b, e[t], key_dim, b);
    Chain(&s.y[t * kStride], 1, c.k, c.key_stride, t, key_dim, b);
    if (t + 1 < n) {
      Chain(&s.y[(t + 1) * kStride + t], kStride, k(t + 1), c.key_stride, n - t - 1, key_dim, b);
    }
    Chain(&s.x[t * kStride + t], kStride, q(t), c.key_stride, n - t, key_dim, b);
    if (c.has_next) Chain(&ends[t], 1, &s.ends[t * key_dim], key_dim, 1, key_dim, b);
    float* dq = c.dq + t * c.key_stride;
    float* dk = c.dk + t * c.key_stride;
    for (int64_t d = 0; d < key_dim; ++d) {
      dq[d] = c.add ? dq[d] + a[d] : a[d];
      dk[d] = c.add ? dk[d] + b[d] : b[d];
    }
    for (int64_t i = 0; i < t; ++i) dg[t] = dg[t] + z(t, i);
    for (int64_t later = t + 1; later < n; ++later) dg[t] = dg[t] - z(later, t);
    if (!c.has_next) continue;
    if (t + 1 < n) {
      dg[t] = dg[t] - f[t];
      continue;
    }
    dg[t] = dg[t] + RowSumProductVector(s.next.data(), c.start, key_dim * width) * e[t];
    for (int64_t i = 0; i < t; ++i) dg[t] = dg[t] + f[i];
  }
  for (int64_t t = n - 2; t >= 0; --t) dg[t] = dg[t + 1] + dg[t];
  for (int64_t t = 0; t < n; ++t) c.dg[t * c.head_stride] = dg[t];
  for (int64_t d = 0; d < key_dim; ++d) {
    float* next = &s.next[d * width];
    if (c.has_next) {
      Scale(next, e[n - 1], width, next);
    } else {
      std::fill(next, next + width, 0.0f);
    }
    for (int64_t t = 0; t < n; ++t) {
      s.factors[2 * t] = q(t)[d] * e[t];
      s.factors[2 * t + 1] = k(t)[d] * e[t];
    }
    Chain(s.factors.data(), 1, s.rows.data(), width, 2 * n, width, next);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

int64_t ChunksOf(int64_t rows) { return (rows + kDeltaChunk - 1) / kDeltaChunk; }

// Chunks of the segments before each.
std::vector<int64_t> FirstChunks(std::span<const DeltaSegment> segments) {
  std::vector<int64_t> first;
  int64_t chunks = 0;
  for (const DeltaSegment& segment : segments) {
    first.push_back(chunks);
    chunks += ChunksOf(segment.num_rows);
  }
  return first;
}

}  // namespace

Status ValidateDeltaShape(const DeltaShape& shape) {
  const auto refuse = [](const char* field, int64_t value, const char* need) {
    return InvalidArgument(std::string("delta rule: ") + field + " " + std::to_string(value) +
                           " must be " + need);
  };
  if (shape.key_heads < 1) return refuse("key_heads", shape.key_heads, "at least 1");
  if (shape.value_heads < 1 || shape.value_heads % shape.key_heads != 0) {
    return refuse("value_heads", shape.value_heads, "a multiple of key_heads");
  }
  if (shape.key_dim < 1 || shape.key_dim > kMaxDeltaDim) {
    return refuse("key_dim", shape.key_dim, "in 1..256");
  }
  if (shape.value_dim < 1 || shape.value_dim > kMaxDeltaDim) {
    return refuse("value_dim", shape.value_dim, "in 1..256");
  }
  return OkStatus();
}

int64_t DeltaStateFloats(const DeltaShape& shape) {
  return shape.value_heads * DeltaHead::Floats(shape);
}

int64_t DeltaChunks(std::span<const DeltaSegment> segments) {
  int64_t chunks = 0;
  for (const DeltaSegment& segment : segments) chunks += ChunksOf(segment.num_rows);
  return chunks;
}

void DeltaForward(Pool& pool, const DeltaShape& shape, std::span<const DeltaSegment> segments,
                  const float* q, const float* k, const float* v, const float* g, const float* beta,
                  float* out, const DeltaSaved* saved) {
  TITAN_CHECK(ValidateDeltaShape(shape).ok());
  const std::vector<int64_t> first_chunk = FirstChunks(segments);
  const int64_t heads = shape.value_heads, ratio = heads / shape.key_heads;
  const int64_t state_floats = shape.key_dim * shape.value_dim;
  pool.Run(static_cast<int>(static_cast<int64_t>(segments.size()) * heads), [&](int task) {
    const DeltaSegment& segment = segments[static_cast<size_t>(task / heads)];
    const int64_t h = task % heads;
    TITAN_CHECK(saved == nullptr || segment.first_position == 0);
    const DeltaHead head(shape, segment.state, h);
    if (segment.first_position == 0) {
      std::fill(head.state, head.state + DeltaHead::Floats(shape), 0.0f);
    }
    for (int64_t i = 0; i < segment.num_rows; ++i) {
      const int64_t row = segment.first_row + i, place = (segment.first_position + i) % kDeltaChunk;
      if (saved != nullptr && place == 0) {
        const int64_t chunk = first_chunk[static_cast<size_t>(task / heads)] + i / kDeltaChunk;
        std::copy(head.state, head.state + state_floats,
                  saved->starts + (chunk * heads + h) * state_floats);
      }
      const int64_t key = (row * shape.key_heads + h / ratio) * shape.key_dim;
      const int64_t value = (row * heads + h) * shape.value_dim;
      const DeltaToken token = {q + key,
                                k + key,
                                v + value,
                                g[row * heads + h],
                                beta[row * heads + h],
                                out + value,
                                saved == nullptr ? nullptr : saved->u + value};
      TITAN_DISPATCH(DeltaRow)(shape, head, place, token);
    }
  });
}

void DeltaBackward(Pool& pool, const DeltaShape& shape, std::span<const DeltaSegment> segments,
                   const float* q, const float* k, const float* g, const float* beta,
                   const DeltaSaved& saved, const float* dout, const DeltaGradients& gradients) {
  TITAN_CHECK(ValidateDeltaShape(shape).ok());
  const std::vector<int64_t> first_chunk = FirstChunks(segments);
  const int64_t heads = shape.value_heads, ratio = heads / shape.key_heads;
  const int64_t state_floats = shape.key_dim * shape.value_dim;
  pool.Run(
      static_cast<int>(static_cast<int64_t>(segments.size()) * shape.key_heads), [&](int task) {
        const DeltaSegment& segment = segments[static_cast<size_t>(task / shape.key_heads)];
        TITAN_CHECK(segment.first_position == 0);
        const int64_t key_head = task % shape.key_heads, chunks = ChunksOf(segment.num_rows);
        DeltaScratch scratch(shape);
        for (int64_t h = key_head * ratio; h < (key_head + 1) * ratio; ++h) {
          for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
            const int64_t row = segment.first_row + chunk * kDeltaChunk;
            const int64_t key = (row * shape.key_heads + key_head) * shape.key_dim;
            const int64_t value = (row * heads + h) * shape.value_dim, scalar = row * heads + h;
            DeltaChunkGradient c;
            c.tokens = std::min(kDeltaChunk, segment.num_rows - chunk * kDeltaChunk);
            c.has_next = chunk + 1 < chunks;
            c.q = q + key, c.k = k + key, c.u = saved.u + value, c.dout = dout + value;
            c.g = g + scalar, c.beta = beta + scalar;
            c.start =
                saved.starts +
                ((first_chunk[static_cast<size_t>(task / shape.key_heads)] + chunk) * heads + h) *
                    state_floats;
            c.dq = gradients.dq + key, c.dk = gradients.dk + key, c.dv = gradients.dv + value;
            c.dg = gradients.dg + scalar, c.dbeta = gradients.dbeta + scalar;
            c.key_stride = shape.key_heads * shape.key_dim;
            c.value_stride = heads * shape.value_dim;
            c.head_stride = heads;
            c.add = h > key_head * ratio;
            TITAN_DISPATCH(DeltaChunkBackward)(shape, c, scratch);
          }
        }
      });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
