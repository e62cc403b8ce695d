// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/reference_moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/elementary.h"
#include "core/kernels/reference_linear.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels::reference {
namespace {

// True when a is the better of two values; finite values only, as the tests give.
bool Better(float a, float b) {
  if (a == 0.0f) a = 0.0f;
  if (b == 0.0f) b = 0.0f;
  return a > b;
}

// Picks the best of what is allowed, `count` times, lowest index first among equals.
std::vector<bool> PickBest(const std::vector<float>& values, const std::vector<bool>& allowed,
                           int64_t count) {
  std::vector<bool> picked(values.size(), false);
  for (int64_t n = 0; n < count; ++n) {
    int best = -1;
    for (size_t j = 0; j < values.size(); ++j) {
      if (!allowed[j] || picked[j]) continue;
      if (best < 0 || Better(values[j], values[static_cast<size_t>(best)])) {
        best = static_cast<int>(j);
      }
    }
    picked[static_cast<size_t>(best)] = true;
  }
  return picked;
}

std::vector<float> Scores(const RouterShape& shape, const float* z,
                          const std::vector<bool>& chosen) {
  std::vector<float> s(static_cast<size_t>(shape.experts));
  float max = -std::numeric_limits<float>::infinity();
  for (size_t j = 0; j < s.size(); ++j) {
    if (shape.score == RouterScore::kSoftmax || chosen[j]) max = std::max(max, z[j]);
  }
  for (size_t j = 0; j < s.size(); ++j) {
    s[j] = shape.score == RouterScore::kSigmoid ? 1.0f / (1.0f + DExp(-z[j])) : DExp(z[j] - max);
  }
  if (shape.score == RouterScore::kSoftmax) {
    const float sum = RowSum(s.data(), shape.experts);
    for (float& value : s) value = value / sum;
  }
  return s;
}

}  // namespace

void ChooseExperts(const RouterShape& shape, const float* logits, const float* correction_bias,
                   int64_t rows, int32_t* ids, float* weights) {
  const size_t experts = static_cast<size_t>(shape.experts);
  const std::vector<bool> all(experts, true);
  for (int64_t t = 0; t < rows; ++t) {
    const float* z = logits + t * shape.experts;
    const bool after = shape.score == RouterScore::kSoftmaxOfChosen;
    std::vector<float> choice(z, z + shape.experts);
    if (!after) choice = Scores(shape, z, all);
    for (size_t j = 0; correction_bias != nullptr && j < experts; ++j) {
      choice[j] = choice[j] + correction_bias[j];
    }
    std::vector<bool> allowed = all;
    if (shape.groups > 1) {
      const size_t width = experts / static_cast<size_t>(shape.groups);
      std::vector<float> values;
      for (size_t g = 0; g < static_cast<size_t>(shape.groups); ++g) {
        std::vector<float> group(choice.begin() + static_cast<ptrdiff_t>(g * width),
                                 choice.begin() + static_cast<ptrdiff_t>((g + 1) * width));
        std::sort(group.begin(), group.end(), Better);
        values.push_back(group[0] + group[1]);
      }
      const std::vector<bool> any(values.size(), true);
      const std::vector<bool> groups = PickBest(values, any, shape.chosen_groups);
      for (size_t j = 0; j < experts; ++j) allowed[j] = groups[j / width];
    }
    const std::vector<bool> chosen = PickBest(choice, allowed, shape.chosen);
    const std::vector<float> s = Scores(shape, z, after ? chosen : all);
    float sum = 0.0f;
    for (size_t j = 0; j < experts; ++j) sum = chosen[j] ? sum + s[j] : sum;
    for (size_t j = 0; j < experts; ++j) {
      if (!chosen[j]) continue;
      *ids++ = static_cast<int32_t>(j);
      *weights++ = (shape.normalise ? s[j] / (sum + shape.normaliser_eps) : s[j]) * shape.scaling;
    }
  }
}

void ChooseExpertsBackward(const RouterShape& shape, const float* logits, const int32_t* ids,
                           const float* dweights, int64_t rows, float* dlogits) {
  const size_t experts = static_cast<size_t>(shape.experts);
  for (int64_t t = 0; t < rows; ++t) {
    std::vector<bool> chosen(experts, false);
    std::vector<float> dw(experts, 0.0f), ds(experts, 0.0f);
    for (int64_t j = 0; j < shape.chosen; ++j) {
      chosen[static_cast<size_t>(ids[t * shape.chosen + j])] = true;
      dw[static_cast<size_t>(ids[t * shape.chosen + j])] = dweights[t * shape.chosen + j];
    }
    const std::vector<float> s = Scores(shape, logits + t * shape.experts, chosen);
    float sum = 0.0f, dot = 0.0f;
    for (size_t j = 0; j < experts; ++j) sum = chosen[j] ? sum + s[j] : sum;
    const float denominator = sum + shape.normaliser_eps;
    for (size_t j = 0; j < experts; ++j) {
      if (chosen[j]) dot = std::fma((s[j] / denominator) * shape.scaling, dw[j], dot);
    }
    for (size_t j = 0; j < experts; ++j) {
      if (!chosen[j]) continue;
      ds[j] = shape.normalise ? (shape.scaling * dw[j] - dot) / denominator : shape.scaling * dw[j];
    }
    float through = 0.0f;
    for (size_t j = 0; j < experts; ++j)
      through = chosen[j] ? std::fma(s[j], ds[j], through) : through;
    for (size_t j = 0; j < experts; ++j) {
      float dz = 0.0f;
      if (shape.score == RouterScore::kSigmoid) {
        if (chosen[j]) dz = ds[j] * (s[j] * (1.0f - s[j]));
      } else if (shape.score == RouterScore::kSoftmax && !shape.normalise) {
        dz = s[j] * (ds[j] - through);
      } else if (chosen[j]) {
        dz = s[j] * ds[j];
      }
      dlogits[static_cast<size_t>(t) * experts + j] = dz;
    }
  }
}

void ExpertLinear(const int32_t* ids, int64_t rows, int64_t chosen, bool per_choice, const float* x,
                  const std::vector<std::vector<float>>& weights,
                  const std::vector<std::vector<float>>& bias, int64_t n, int64_t k, int leaves,
                  float* out) {
  for (int64_t i = 0; i < rows * chosen; ++i) {
    const float* in = x + (per_choice ? i : i / chosen) * k;
    const size_t e = static_cast<size_t>(ids[i]);
    for (int64_t r = 0; r < n; ++r) {
      const float sum = LinearOutput(in, weights[e].data() + r * k, k, leaves);
      out[i * n + r] = bias.empty() ? sum : sum + bias[e][static_cast<size_t>(r)];
    }
  }
}

void CombinePlaces(int64_t rows, int64_t chosen, const float* weights, const float* out,
                   const float* shared, int64_t width, float* y) {
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      float sum = 0.0f;
      for (int64_t j = 0; j < chosen; ++j) {
        sum = std::fma(weights[t * chosen + j], out[(t * chosen + j) * width + i], sum);
      }
      y[t * width + i] = shared == nullptr ? sum : sum + shared[t * width + i];
    }
  }
}

void CombinePlacesBackward(int64_t rows, int64_t chosen, const float* weights, const float* out,
                           const float* dy, int64_t width, float* dout, float* dweights) {
  for (int64_t i = 0; i < rows * chosen; ++i) {
    const float* dy_row = dy + i / chosen * width;
    for (int64_t c = 0; c < width; ++c) dout[i * width + c] = weights[i] * dy_row[c];
    dweights[i] = RowSumProduct(dy_row, out + i * width, width);
  }
}

void ScatterPlaces(int64_t rows, int64_t chosen, const float* dplaces, int64_t width, float* dx) {
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      float sum = 0.0f;
      for (int64_t j = 0; j < chosen; ++j) sum = sum + dplaces[(t * chosen + j) * width + i];
      dx[t * width + i] = sum;
    }
  }
}

void BoundedGate(const GateBounds& bounds, int64_t n, const float* gate, const float* up,
                 float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = std::min(gate[i], bounds.limit);
    const float u = std::min(std::max(up[i], -bounds.limit), bounds.limit);
    out[i] = (u + bounds.offset) * (g / (1.0f + DExp(-(bounds.alpha * g))));
  }
}

void BoundedGateBackward(const GateBounds& bounds, int64_t n, const float* gate, const float* up,
                         const float* dout, float* dgate, float* dup) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = std::min(gate[i], bounds.limit);
    const float u = std::min(std::max(up[i], -bounds.limit), bounds.limit);
    const float scaled = bounds.alpha * g, t = 1.0f + DExp(-scaled), s = 1.0f / t;
    const float d = dout[i];
    dup[i] = std::abs(up[i]) <= bounds.limit ? d * (g / t) : 0.0f;
    dgate[i] = gate[i] <= bounds.limit
                   ? (d * (u + bounds.offset)) * (s * std::fma(scaled, 1.0f - s, 1.0f))
                   : 0.0f;
  }
}

}  // namespace titan::kernels::reference
