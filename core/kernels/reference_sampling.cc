// SPDX-License-Identifier: Apache-2.0
//
// The scalar twin of sampling.cc.
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

struct Chunks {
  float max = kMinusInfinity;
  std::vector<float> maximum;  // m_c
  std::vector<float> running;  // C_c
  float sum = 0.0f;
};

Chunks Scan(const std::vector<float>& z) {
  const int64_t vocab = static_cast<int64_t>(z.size());
  Chunks chunks;
  for (const float value : z) chunks.max = value > chunks.max ? value : chunks.max;
  chunks.max = chunks.max + 0.0f;
  for (int64_t begin = 0; begin < vocab; begin += kRowSumChunk) {
    const int64_t end = std::min(vocab, begin + kRowSumChunk);
    float maximum = kMinusInfinity;
    bool skip = true;
    for (int64_t j = begin; j < end; ++j) {
      maximum = z[j] > maximum ? z[j] : maximum;
      skip = skip && z[j] == kMinusInfinity;
    }
    if (!skip) {
      std::vector<float> terms;
      for (int64_t j = begin; j < end; ++j) terms.push_back(DExp(z[j] - maximum));
      const float sum = RowSum(terms.data(), end - begin);
      chunks.sum = std::fma(sum, DExp(maximum - chunks.max), chunks.sum);
    }
    chunks.maximum.push_back(maximum + 0.0f);
    chunks.running.push_back(chunks.sum);
  }
  return chunks;
}

std::vector<float> Scaled(const float* logits, int64_t vocab, float inv_temperature) {
  std::vector<float> z(vocab);
  for (int64_t j = 0; j < vocab; ++j) z[j] = logits[j] * inv_temperature;
  return z;
}

}  // namespace

LogSoftmaxStats ComputeLogSoftmax(const float* logits, int64_t vocab, float inv_temperature) {
  const Chunks chunks = Scan(Scaled(logits, vocab, inv_temperature));
  return {chunks.max, chunks.sum, DLog(chunks.sum)};
}

float EntropyOf(const float* logits, int64_t vocab, float inv_temperature) {
  const std::vector<float> z = Scaled(logits, vocab, inv_temperature);
  const Chunks chunks = Scan(z);
  float weighted = 0.0f;
  for (int64_t begin = 0; begin < vocab; begin += kRowSumChunk) {
    const int64_t end = std::min(vocab, begin + kRowSumChunk);
    const float maximum = chunks.maximum[begin / kRowSumChunk];
    std::vector<float> terms, differences;
    bool skip = true;
    for (int64_t j = begin; j < end; ++j) {
      const float difference = z[j] - maximum, e = DExp(difference);
      skip = skip && z[j] == kMinusInfinity;
      terms.push_back(e);
      differences.push_back(e == 0.0f ? 0.0f : difference);
    }
    if (skip) continue;
    const float sum = RowSum(terms.data(), end - begin);
    const float b = RowSumProduct(terms.data(), differences.data(), end - begin);
    const float shift = maximum - chunks.max;
    weighted = std::fma(std::fma(sum, shift, b), DExp(shift), weighted);
  }
  return DLog(chunks.sum) - weighted / chunks.sum;
}

int32_t SampleId(const float* logits, int64_t vocab, float inv_temperature, double u) {
  const std::vector<float> z = Scaled(logits, vocab, inv_temperature);
  const Chunks chunks = Scan(z);
  const double target = u * static_cast<double>(chunks.sum);
  for (size_t c = 0; c < chunks.running.size(); ++c) {
    if (!(static_cast<double>(chunks.running[c]) > target)) continue;
    float r = c == 0 ? 0.0f : chunks.running[c - 1];
    const float factor = DExp(chunks.maximum[c] - chunks.max);
    const int64_t begin = static_cast<int64_t>(c) * kRowSumChunk,
                  end = std::min(vocab, begin + kRowSumChunk);
    int64_t last = -1;
    for (int64_t j = begin; j < end; ++j) {
      const float term = DExp(z[j] - chunks.maximum[c]);
      r = std::fma(term, factor, r);
      if (static_cast<double>(r) > target) return static_cast<int32_t>(j);
      if (term > 0.0f) last = j;
    }
    return static_cast<int32_t>(last);
  }
  return -1;
}

int32_t ArgMax(const float* logits, int64_t vocab) {
  float max = kMinusInfinity;
  for (int64_t j = 0; j < vocab; ++j) max = logits[j] > max ? logits[j] : max;
  for (int64_t j = 0; j < vocab; ++j) {
    if (logits[j] == max) return static_cast<int32_t>(j);
  }
  return 0;
}

}  // namespace titan::kernels::reference
