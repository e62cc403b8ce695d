// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/reference_gated_delta.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels::reference {
namespace {

// [rows][columns] of floats.
class Grid {
 public:
  Grid(int64_t rows, int64_t columns)
      : columns_(columns), values_(static_cast<size_t>(rows * columns), 0.0f) {}
  float& operator()(int64_t row, int64_t column) {
    return values_[static_cast<size_t>(row * columns_ + column)];
  }
  float operator()(int64_t row, int64_t column) const {
    return values_[static_cast<size_t>(row * columns_ + column)];
  }
  const float* row(int64_t r) const { return values_.data() + r * columns_; }
  float* data() { return values_.data(); }

 private:
  int64_t columns_;
  std::vector<float> values_;
};

// fma(a(i), b(i), .) over i in [begin, end) ascending, from `from`.
float ChainOf(float from, int64_t begin, int64_t end, const std::function<float(int64_t)>& a,
              const std::function<float(int64_t)>& b) {
  for (int64_t i = begin; i < end; ++i) from = std::fma(a(i), b(i), from);
  return from;
}

// Operands of one value head and chunk, with the decays.
struct Chunk {
  Chunk(const DeltaShape& shape, int64_t first, int64_t tokens, int64_t head, const float* q,
        const float* k, const float* g)
      : n(tokens),
        query(tokens, shape.key_dim),
        key(tokens, shape.key_dim),
        qk(tokens, tokens),
        kk(tokens, tokens),
        decay(tokens, tokens) {
    const int64_t key_head = head / (shape.value_heads / shape.key_heads);
    float sum = 0.0f;
    for (int64_t t = 0; t < n; ++t) {
      const int64_t at = ((first + t) * shape.key_heads + key_head) * shape.key_dim;
      for (int64_t d = 0; d < shape.key_dim; ++d) {
        query(t, d) = q[at + d];
        key(t, d) = k[at + d];
      }
      const float step = g[(first + t) * shape.value_heads + head];
      sum = t == 0 ? step : sum + step;
      decays.push_back(sum);
      e.push_back(DExp(sum));
    }
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t i = 0; i <= t; ++i) {
        const auto of = [&](const Grid& x) {
          return ChainOf(
              0.0f, 0, shape.key_dim, [&](int64_t d) { return x(t, d); },
              [&](int64_t d) { return key(i, d); });
        };
        qk(t, i) = of(query);
        kk(t, i) = of(key);
        decay(t, i) = DExp(decays[static_cast<size_t>(t)] - decays[static_cast<size_t>(i)]);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      ends.push_back(DExp(decays.back() - decays[static_cast<size_t>(i)]));
    }
  }
  int64_t n;
  Grid query, key, qk, kk, decay;
  std::vector<float> decays, e, ends;
};

}  // namespace

void DeltaForward(const DeltaShape& shape, int64_t rows, const float* q, const float* k,
                  const float* v, const float* g, const float* beta, float* out,
                  const DeltaSaved* saved) {
  const int64_t heads = shape.value_heads, width = shape.value_dim;
  for (int64_t h = 0; h < heads; ++h) {
    Grid state(shape.key_dim, width);
    for (int64_t first = 0; first < rows; first += kDeltaChunk) {
      const Chunk c(shape, first, std::min(kDeltaChunk, rows - first), h, q, k, g);
      if (saved != nullptr) {
        std::copy(state.row(0), state.row(shape.key_dim),
                  saved->starts + (first / kDeltaChunk * heads + h) * shape.key_dim * width);
      }
      Grid delta(c.n, width);
      for (int64_t t = 0; t < c.n; ++t) {
        const size_t s = static_cast<size_t>(t);
        for (int64_t j = 0; j < width; ++j) {
          const int64_t at = ((first + t) * heads + h) * width + j;
          const auto read = [&](const Grid& x) {
            return c.e[s] * ChainOf(
                                0.0f, 0, shape.key_dim, [&](int64_t d) { return x(t, d); },
                                [&](int64_t d) { return state(d, j); });
          };
          const auto column = [&](int64_t i) { return delta(i, j); };
          const float r = ChainOf(
              read(c.key), 0, t, [&](int64_t i) { return c.kk(t, i) * c.decay(t, i); }, column);
          const float u = v[at] - r;
          if (saved != nullptr) saved->u[at] = u;
          delta(t, j) = u * beta[(first + t) * heads + h];
          const float o = ChainOf(
              read(c.query), 0, t, [&](int64_t i) { return c.qk(t, i) * c.decay(t, i); }, column);
          out[at] = std::fma(c.qk(t, t), delta(t, j), o);
        }
      }
      if (c.n < kDeltaChunk) continue;
      for (int64_t d = 0; d < shape.key_dim; ++d) {
        for (int64_t j = 0; j < width; ++j) {
          state(d, j) = ChainOf(
              state(d, j) * c.e.back(), 0, c.n,
              [&](int64_t i) { return c.key(i, d) * c.ends[static_cast<size_t>(i)]; },
              [&](int64_t i) { return delta(i, j); });
        }
      }
    }
  }
}

void DeltaBackward(const DeltaShape& shape, int64_t rows, const float* q, const float* k,
                   const float* g, const float* beta, const DeltaSaved& saved, const float* dout,
                   const DeltaGradients& gradients) {
  const int64_t heads = shape.value_heads, width = shape.value_dim, dim = shape.key_dim;
  const int64_t ratio = heads / shape.key_heads;
  for (int64_t h = 0; h < heads; ++h) {
    Grid next(dim, width);
    for (int64_t first = (rows - 1) / kDeltaChunk * kDeltaChunk; first >= 0; first -= kDeltaChunk) {
      const bool has_next = first + kDeltaChunk < rows;
      const Chunk c(shape, first, std::min(kDeltaChunk, rows - first), h, q, k, g);
      const float* start = saved.starts + (first / kDeltaChunk * heads + h) * dim * width;
      const auto value = [&](const float* x, int64_t t, int64_t j) {
        return x[((first + t) * heads + h) * width + j];
      };
      const auto scalar = [&](int64_t t) { return (first + t) * heads + h; };
      Grid delta(c.n, width), dr(c.n, width), ddelta(c.n, width), x(c.n, c.n), y(c.n, c.n);
      for (int64_t t = 0; t < c.n; ++t) {
        for (int64_t j = 0; j < width; ++j) {
          delta(t, j) = value(saved.u, t, j) * beta[scalar(t)];
        }
      }
      for (int64_t t = c.n - 1; t >= 0; --t) {
        std::vector<float> u;
        for (int64_t j = 0; j < width; ++j) {
          float sum = 0.0f;
          if (has_next) {
            sum = ChainOf(
                      0.0f, 0, dim, [&](int64_t d) { return c.key(t, d); },
                      [&](int64_t d) { return next(d, j); }) *
                  c.ends[static_cast<size_t>(t)];
          }
          for (int64_t s = t; s < c.n; ++s) {
            const float factor = s == t ? c.qk(t, t) : c.qk(s, t) * c.decay(s, t);
            sum = std::fma(factor, value(dout, s, j), sum);
          }
          for (int64_t s = t + 1; s < c.n; ++s) {
            sum = std::fma(c.kk(s, t) * c.decay(s, t), dr(s, j), sum);
          }
          ddelta(t, j) = sum;
          u.push_back(value(saved.u, t, j));
        }
        gradients.dbeta[scalar(t)] = RowSumProduct(ddelta.row(t), u.data(), width);
        for (int64_t j = 0; j < width; ++j) {
          const float dv = ddelta(t, j) * beta[scalar(t)];
          gradients.dv[((first + t) * heads + h) * width + j] = dv;
          dr(t, j) = -dv;
        }
      }
      const auto of_delta = [&](int64_t i, const std::function<float(int64_t)>& left) {
        return ChainOf(0.0f, 0, width, left, [&](int64_t j) { return delta(i, j); });
      };
      for (int64_t t = 0; t < c.n; ++t) {
        for (int64_t i = 0; i <= t; ++i) {
          const float p = of_delta(i, [&](int64_t j) { return value(dout, t, j); });
          const float r = of_delta(i, [&](int64_t j) { return dr(t, j); });
          x(t, i) = i == t ? p : p * c.decay(t, i);
          y(t, i) = i == t ? 0.0f : r * c.decay(t, i);
        }
      }
      const auto z = [&](int64_t t, int64_t i) {
        return std::fma(c.qk(t, i), x(t, i), c.kk(t, i) * y(t, i));
      };
      Grid through_end(c.n, dim);
      std::vector<float> f(static_cast<size_t>(c.n)), dg(static_cast<size_t>(c.n));
      for (int64_t t = 0; has_next && t < c.n; ++t) {
        for (int64_t d = 0; d < dim; ++d) {
          through_end(t, d) = of_delta(t, [&](int64_t j) { return next(d, j); });
        }
        f[static_cast<size_t>(t)] =
            RowSumProduct(c.key.row(t), through_end.row(t), dim) * c.ends[static_cast<size_t>(t)];
      }
      for (int64_t t = 0; t < c.n; ++t) {
        const size_t s = static_cast<size_t>(t);
        Grid a(1, dim), b(1, dim);
        for (int64_t d = 0; d < dim; ++d) {
          const auto in_state = [&](int64_t j) { return start[d * width + j]; };
          a(0, d) = ChainOf(
              0.0f, 0, width, [&](int64_t j) { return value(dout, t, j); }, in_state);
          b(0, d) = ChainOf(
              0.0f, 0, width, [&](int64_t j) { return dr(t, j); }, in_state);
        }
        dg[s] = (RowSumProduct(a.row(0), c.query.row(t), dim) +
                 RowSumProduct(b.row(0), c.key.row(t), dim)) *
                c.e[s];
        for (int64_t i = 0; i < t; ++i) dg[s] = dg[s] + z(t, i);
        for (int64_t later = t + 1; later < c.n; ++later) dg[s] = dg[s] - z(later, t);
        if (has_next && t + 1 < c.n) dg[s] = dg[s] - f[s];
        if (has_next && t + 1 == c.n) {
          dg[s] = dg[s] + RowSumProduct(next.row(0), start, dim * width) * c.e[s];
          for (size_t i = 0; i < s; ++i) dg[s] = dg[s] + f[i];
        }
        for (int64_t d = 0; d < dim; ++d) {
          const auto keys = [&](int64_t i) { return c.key(i, d); };
          const float dq = ChainOf(
              a(0, d) * c.e[s], 0, t + 1, [&](int64_t i) { return x(t, i); }, keys);
          float dk = ChainOf(
              b(0, d) * c.e[s], 0, t, [&](int64_t i) { return y(t, i); }, keys);
          dk = ChainOf(
              dk, t + 1, c.n, [&](int64_t i) { return y(i, t); }, keys);
          dk = ChainOf(
              dk, t, c.n, [&](int64_t i) { return x(i, t); },
              [&](int64_t i) { return c.query(i, d); });
          if (has_next) dk = std::fma(c.ends[s], through_end(t, d), dk);
          const int64_t at = ((first + t) * shape.key_heads + h / ratio) * dim + d;
          gradients.dq[at] = h % ratio == 0 ? dq : gradients.dq[at] + dq;
          gradients.dk[at] = h % ratio == 0 ? dk : gradients.dk[at] + dk;
        }
      }
      for (int64_t t = c.n - 1; t >= 0; --t) {
        const size_t s = static_cast<size_t>(t);
        if (t + 1 < c.n) dg[s] = dg[s + 1] + dg[s];
        gradients.dg[scalar(t)] = dg[s];
      }
      for (int64_t d = 0; d < dim; ++d) {
        for (int64_t j = 0; j < width; ++j) {
          float sum = has_next ? next(d, j) * c.e.back() : 0.0f;
          for (int64_t t = 0; t < c.n; ++t) {
            const float e = c.e[static_cast<size_t>(t)];
            sum = std::fma(c.query(t, d) * e, value(dout, t, j), sum);
            sum = std::fma(c.key(t, d) * e, dr(t, j), sum);
          }
          next(d, j) = sum;
        }
      }
    }
  }
}

}  // namespace titan::kernels::reference
