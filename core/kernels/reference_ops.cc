// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"

namespace titan::kernels::reference {
namespace {

int64_t TableIndex(TableLayout layout, int64_t k, int64_t row, int64_t column) {
  return layout == TableLayout::kRows ? row * k + column : PanelIndex(k, row, column);
}

}  // namespace

float RowSum(const float* x, int64_t n) {
  float total = 0.0f;
  for (int64_t chunk = 0; chunk < n; chunk += kRowSumChunk) {
    float lane[kRowSumLanes] = {};
    for (int64_t i = 0; i < kRowSumChunk; ++i) {
      const float value = chunk + i < n ? x[chunk + i] : 0.0f;
      lane[i % kRowSumLanes] = lane[i % kRowSumLanes] + value;
    }
    for (int64_t h = kRowSumLanes / 2; h > 0; h /= 2) {
      for (int64_t j = 0; j < h; ++j) lane[j] = lane[j] + lane[j + h];
    }
    total = total + lane[0];
  }
  return total;
}

float RowSumProduct(const float* a, const float* b, int64_t n) {
  float total = 0.0f;
  for (int64_t chunk = 0; chunk < n; chunk += kRowSumChunk) {
    float lane[kRowSumLanes] = {};
    for (int64_t i = 0; i < std::min(kRowSumChunk, n - chunk); ++i) {
      lane[i % kRowSumLanes] = std::fma(a[chunk + i], b[chunk + i], lane[i % kRowSumLanes]);
    }
    for (int64_t h = kRowSumLanes / 2; h > 0; h /= 2) {
      for (int64_t j = 0; j < h; ++j) lane[j] = lane[j] + lane[j + h];
    }
    total = total + lane[0];
  }
  return total;
}

void SwiGlu(int64_t n, const float* gate, const float* up, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = (gate[i] / (1.0f + DExp(-gate[i]))) * up[i];
}

void SwiGluBackward(int64_t n, const float* gate, const float* up, const float* dout, float* dgate,
                    float* dup) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i], u = up[i], d = dout[i];
    const float t = 1.0f + DExp(-g);
    const float s = 1.0f / t;
    const float silu = g / t;
    dup[i] = d * silu;
    dgate[i] = (d * u) * (s * std::fma(g, 1.0f - s, 1.0f));
  }
}

void Softplus(int64_t n, const float* x, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = DSoftplus(x[i]);
}

void SoftplusBackward(int64_t n, const float* x, const float* dout, float* dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = dout[i] / (1.0f + DExp(-x[i]));
}

void GeluGlu(int64_t n, const float* gate, const float* up, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i], h = 0.5f * g;
    const float t = DTanh((g * kGeluRoot) * std::fma(g * g, kGeluCubic, 1.0f));
    out[i] = std::fma(h, t, h) * up[i];
  }
}

void GeluGluBackward(int64_t n, const float* gate, const float* up, const float* dout, float* dgate,
                     float* dup) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i], u = up[i], d = dout[i], h = 0.5f * g, q = g * g;
    const float t = DTanh((g * kGeluRoot) * std::fma(q, kGeluCubic, 1.0f));
    const float slope = std::fma(0.5f, t, 0.5f) +
                        (h * std::fma(-t, t, 1.0f)) * (kGeluRoot * std::fma(q, kGeluCubic3, 1.0f));
    dup[i] = d * std::fma(h, t, h);
    dgate[i] = (d * u) * slope;
  }
}

void ApplyRope(const RopeTable& table, float* x, int64_t ldx, int64_t rows, int num_heads,
               const int32_t* positions) {
  const int half = table.rotary_dim() / 2;
  const bool interleaved = table.pairs() == RopePairs::kInterleaved;
  for (int64_t t = 0; t < rows; ++t) {
    const float* cosine = table.cosines(positions[t]);
    const float* sine = table.sines(positions[t]);
    for (int h = 0; h < num_heads; ++h) {
      float* head = x + t * ldx + static_cast<int64_t>(h) * table.head_dim();
      const std::vector<float> in(head, head + 2 * half);
      for (int i = 0; i < half; ++i) {
        const float x1 = in[static_cast<size_t>(interleaved ? 2 * i : i)];
        const float x2 = in[static_cast<size_t>(interleaved ? 2 * i + 1 : i + half)];
        head[i] = std::fma(x1, cosine[i], -(x2 * sine[i]));
        head[i + half] = std::fma(x2, cosine[i], x1 * sine[i]);
      }
    }
  }
}

void ApplyRopeBackward(const RopeTable& table, float* dx, int64_t ldx, int64_t rows, int num_heads,
                       const int32_t* positions) {
  const int half = table.rotary_dim() / 2;
  const bool interleaved = table.pairs() == RopePairs::kInterleaved;
  for (int64_t t = 0; t < rows; ++t) {
    const float* cosine = table.cosines(positions[t]);
    const float* sine = table.sines(positions[t]);
    for (int h = 0; h < num_heads; ++h) {
      float* head = dx + t * ldx + static_cast<int64_t>(h) * table.head_dim();
      const std::vector<float> in(head, head + 2 * half);
      for (int i = 0; i < half; ++i) {
        const float d1 = in[static_cast<size_t>(i)], d2 = in[static_cast<size_t>(i + half)];
        head[interleaved ? 2 * i : i] = std::fma(d1, cosine[i], d2 * sine[i]);
        head[interleaved ? 2 * i + 1 : i + half] = std::fma(d2, cosine[i], -(d1 * sine[i]));
      }
    }
  }
}

void EmbeddingGradient(TableLayout layout, const float* dy, int64_t vocab, int64_t hidden,
                       const int32_t* tokens, std::span<const RowRange> units, float* accumulator) {
  for (const RowRange& unit : units) {
    for (int64_t id = 0; id < vocab; ++id) {
      if (std::count(tokens + unit.begin, tokens + unit.end, static_cast<int32_t>(id)) == 0)
        continue;
      for (int64_t i = 0; i < hidden; ++i) {
        float chain = 0.0f;
        for (int64_t t = unit.begin; t < unit.end; ++t) {
          if (tokens[t] == id) chain = chain + dy[t * hidden + i];
        }
        float* place = accumulator + TableIndex(layout, hidden, id, i);
        *place = *place + chain;
      }
    }
  }
}

double GradientSquareSum(const GradientTensor& tensor) {
  const int64_t count = tensor.n * tensor.k;
  double total = 0.0;
  for (int64_t chunk = 0; chunk < count; chunk += kRowSumChunk) {
    double lane[kRowSumLanes] = {};
    for (int64_t i = 0; i < std::min(kRowSumChunk, count - chunk); ++i) {
      const int64_t flat = chunk + i;
      const double g =
          tensor.data[TableIndex(tensor.layout, tensor.k, flat / tensor.k, flat % tensor.k)];
      lane[i % kRowSumLanes] = lane[i % kRowSumLanes] + g * g;
    }
    for (int64_t h = kRowSumLanes / 2; h > 0; h /= 2) {
      for (int64_t j = 0; j < h; ++j) lane[j] = lane[j] + lane[j + h];
    }
    total = total + lane[0];
  }
  return total;
}

bool AdamWStep(int64_t count, const AdamWScalars& s, float grad_scale, const float* g, float* p,
               float* m, float* v) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * grad_scale;
    m[i] = std::fma(s.beta1, m[i], s.one_minus_beta1 * grad);
    v[i] = std::fma(s.beta2, v[i], (s.one_minus_beta2 * grad) * grad);
    const float denominator = std::fma(std::sqrt(v[i]), s.inv_sqrt_correction2, s.eps);
    p[i] = std::fma(-s.step_size, m[i] / denominator, p[i] * s.decay);
    finite = finite && std::isfinite(m[i]) && std::isfinite(v[i]) && std::isfinite(p[i]);
  }
  return finite;
}

}  // namespace titan::kernels::reference
