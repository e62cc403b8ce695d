// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/reference_head.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/order.h"
#include "core/kernels/reference_linear.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels::reference {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float Canonical(float x) { return std::isnan(x) ? std::bit_cast<float>(0x7fc00000u) : x; }

float MaximumOf(const float* z, int64_t n) {
  float max = kMinusInfinity;
  for (int64_t j = 0; j < n; ++j) max = z[j] > max ? z[j] : max;
  return max + 0.0f;
}

std::vector<float> ScaledLogits(const HeadShape& shape, const float* hidden, const float* weight) {
  std::vector<float> z(static_cast<size_t>(shape.vocab));
  Linear(hidden, shape.hidden, 1, weight, shape.vocab, shape.hidden, shape.leaves, nullptr,
         z.data(), shape.vocab);
  for (float& value : z) value = value * shape.inv_temperature;
  return z;
}

}  // namespace

void HeadLogProb(const HeadShape& shape, const float* hidden, int64_t ldh, int64_t rows,
                 const float* weight, const int32_t* targets, float* log_prob, float* max,
                 float* log_sum, float* entropy) {
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> z = ScaledLogits(shape, hidden + r * ldh, weight);
    const float m = MaximumOf(z.data(), shape.vocab);
    float sum = 0.0f, weighted = 0.0f;
    for (int64_t begin = 0; begin < shape.vocab; begin += kRowSumChunk) {
      const int64_t count = std::min(kRowSumChunk, shape.vocab - begin);
      const float* chunk = z.data() + begin;
      if (std::all_of(chunk, chunk + count, [](float v) { return v == kMinusInfinity; })) continue;
      const float m_c = MaximumOf(chunk, count);
      std::vector<float> e, d;
      for (int64_t j = 0; j < count; ++j) {
        d.push_back(chunk[j] - m_c);
        e.push_back(DExp(d.back()));
        if (e.back() == 0.0f) d.back() = 0.0f;
      }
      const float s_c = RowSum(e.data(), count), b_c = RowSumProduct(e.data(), d.data(), count);
      const float factor = DExp(m_c - m);
      sum = std::fma(s_c, factor, sum);
      weighted = std::fma(std::fma(s_c, m_c - m, b_c), factor, weighted);
    }
    max[r] = m;
    log_sum[r] = Canonical(DLog(sum));
    log_prob[r] = Canonical((z[static_cast<size_t>(targets[r])] - m) - log_sum[r]);
    if (entropy != nullptr) entropy[r] = Canonical(log_sum[r] - weighted / sum);
  }
}

void HeadLogProbBackward(const HeadShape& shape, const float* hidden, int64_t ldh, int64_t rows,
                         const float* weight, const int32_t* targets, const float* dlp,
                         const float* max, const float* log_sum, std::span<const HeadUnit> units,
                         float* dhidden, int64_t ldd, float* accumulator) {
  const int64_t vocab = shape.vocab, h = shape.hidden;
  std::vector<float> dz(static_cast<size_t>(rows * vocab)),
      transposed(static_cast<size_t>(vocab * h));
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> z = ScaledLogits(shape, hidden + r * ldh, weight);
    const float g = dlp[r] * shape.inv_temperature;
    for (int64_t j = 0; j < vocab; ++j) {
      const float p = DExp((z[static_cast<size_t>(j)] - max[r]) - log_sum[r]);
      dz[static_cast<size_t>(r * vocab + j)] = g * ((j == targets[r] ? 1.0f : 0.0f) - p);
    }
  }
  for (int64_t j = 0; j < vocab; ++j) {
    for (int64_t i = 0; i < h; ++i)
      transposed[static_cast<size_t>(i * vocab + j)] = weight[j * h + i];
  }
  Linear(dz.data(), vocab, rows, transposed.data(), h, vocab, LeafCount(vocab, 0), nullptr, dhidden,
         ldd);
  if (accumulator == nullptr) return;
  for (const HeadUnit& unit : units) {
    if (unit.count == 0) continue;
    LinearWeightGradient(hidden + unit.first * ldh, ldh, dz.data() + unit.first * vocab, vocab,
                         unit.count, vocab, h, accumulator);
  }
}

}  // namespace titan::kernels::reference
